"""Golden tests: what must not change while the code is rebuilt.

    test_paper_study, test_mixed_study, test_mixed_gap_study, test_weighed_study
                     results of every policy on three studies, bit for bit
    test_protocol    transcripts of served federations: every request and its answer
    test_storage     versions and tables of a server's database and of an agent's file
    test_commands    exit codes, JSON and refusals of every command
    test_names       the public names

They use what users use: public names, the command, HTTP, SQLite files. Each test compares one entry
of a JSON file in `data/` with what it finds now.

To record entries anew, deliberately, name them in RMAB_RECORD by patterns of the shell's kind,
FILE/ENTRY, several with commas between them, and run the tests without -n:

    RMAB_RECORD='mixed-gap/*,mixed/fedts*' python -m pytest tests/golden/test_mixed*
    RMAB_RECORD='*' python -m pytest tests/golden

Other entries are compared as ever. `git diff` then shows what has changed, in numbers.
"""
