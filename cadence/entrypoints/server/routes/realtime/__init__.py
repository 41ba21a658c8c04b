"""/v1/realtime: conversations over a WebSocket, by the events of OpenAI's Realtime API, as far as they are about text.
May import what other routes import, and these."""
