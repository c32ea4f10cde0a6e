"""`rmab reproduce`: the report of the figures that were asked for."""


def test_reproduce_writes_one_report(call, tmp_path):
    out = tmp_path / "paper"
    ran = call("reproduce", "fig13", "--out", out)
    assert ran.code == 0
    assert ran.out.startswith("fig13  ")
    assert "held: The best policy for one arm" in ran.out
    assert "b* = 0.3800" in ran.out
    assert ran.err == f"report: {out / 'report.html'}\n"
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "fig13.png", "fig13.svg"} <= names


def test_reproduce_runs_a_figure_with_fewer_trials(call, tmp_path):
    out = tmp_path / "paper"
    ran = call("reproduce", "fig13", "fig07", "--trials", "32", "--out", out, "--json")
    assert ran.code == 0
    assert list(ran.json) == ["fig07", "fig13"]  # in the paper's order
    figure = ran.json["fig07"]
    assert figure["variants"][""]["trials"] == 32
    assert {type(claim["held"]) for claim in figure["claims"]} <= {bool, type(None)}
    assert len(figure["claims"]) == 2
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "fig07.png", "fig07.svg", "fig13.png", "fig13.svg"} <= names
