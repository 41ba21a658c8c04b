"""The shapes of requests and answers: `X.py` is the body of an endpoint, `X_answer.py` what it returns or streams.
Imports `chat` and `http`; `responses` and `routes` import it."""
