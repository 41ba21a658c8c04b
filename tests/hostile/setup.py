"""What a generator needs to know of a server before it begins: its schema, and ids that exist."""

from __future__ import annotations

from tests.helpers.recordings import tone, wav_file
from tests.hostile.case import Case
from tests.hostile.cases import Cases
from tests.hostile.forms import FormCases
from tests.hostile.health import Target
from tests.hostile.seeds import LONG, SEEDS


def make_cases(target: Target, seed: int) -> Cases:
    with target.client() as client:
        document = client.get("/openapi.json").json()
        models = [one["id"] for one in client.get("/v1/models").json()["data"]]
        stored = client.post("/v1/responses", json={"input": "hello", "max_output_tokens": 2}).json()["id"]
    return Cases(document, seed, (*models, stored))


def hostile_forms(target: Target) -> list[Case]:
    """With a recording that a server reads where its model hears."""
    with target.client() as client:
        forms = FormCases(client.get("/openapi.json").json(), wav_file(tone(0.1)))
    return [*forms.of_fields(), *forms.of_framing()]


def invalid_seeds(target: Target) -> list[str]:
    """Bodies that are meant to be valid and are refused: what is put into them would be refused for their sake."""
    found = []
    with target.client() as client:
        bodies = [(path, body) for path in SEEDS for body in SEEDS[path]]
        for path, body in (*bodies, *LONG.items()):
            reply = client.post(path, json=body)
            if reply.status_code != 200:
                found.append(f"{path} {body}: {reply.status_code} {reply.text}")
    return found
