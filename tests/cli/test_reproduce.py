"""`rmab reproduce`: the report of the figures that were asked for."""


def test_reproduce_writes_one_report(call, tmp_path):
    out = tmp_path / "paper"
    ran = call("reproduce", "fig13", "--out", out)
    assert ran.code == 0
    assert ran.out.startswith("fig13  ")
    assert "held: The best policy for one arm" in ran.out
    assert "contradicted: The arm is played on the left" in ran.out
    assert ran.out.endswith(
        "\n\nOf 2 claims of the paper, 1 held and 1 was contradicted. No claim beyond the paper "
        "was judged. Contradicted were claims of Fig. 13.\n"
    )
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
    assert len(figure["claims"]) == 2
    for claim in figure["claims"]:
        assert claim["verdict"] in ("held", "undecided")
        assert claim["held"] is (True if claim["verdict"] == "held" else None)
        assert {effect["trials"] for effect in claim["effects"]} == {32}
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "fig07.png", "fig07.svg", "fig13.png", "fig13.svg"} <= names


def test_20_trials_contradict_only_what_is_computed(call, tmp_path):
    """Of the paper's claims that 10,000 trials decide, they leave open what they cannot know."""
    out = tmp_path / "paper"
    ran = call("reproduce", "fig07", "fig11", "--trials", "20", "--out", out)
    assert ran.code == 0
    assert "did not hold" not in ran.out
    assert "contradicted" not in ran.out.partition("\n\n")[0]
    assert ran.out.count("  undecided: ") >= 2
    assert ran.out.count(" Undecided: ") == ran.out.count("  undecided: ")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "6 claims of the paper, " in page
    assert "None was contradicted." in page
