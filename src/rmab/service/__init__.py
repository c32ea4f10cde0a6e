"""The federation over a network: the server with its store and page, the agent, the demo."""
