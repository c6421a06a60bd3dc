"""What a run says of its checkpoint once it is served."""

from coordexp.train.facts import served_sentence

MEASURED = {
    "constrained/argmax/AP": 0.2815,
    "constrained/expected/AP": 0.343,
    "constrained/expected/AP_top5": 0.325,
    "constrained/expected/AP_top20": 0.341,
    "constrained/expected/AP_top128": 0.343,
}


def test_each_way_to_read_served_answers_has_its_ap():
    sentence = served_sentence(MEASURED)
    for value in ("0.281", "0.325 over 5", "0.341 over 20", "0.343 over 128"):
        assert value in sentence


def test_a_run_that_did_not_measure_it_says_nothing():
    assert served_sentence({}) == ""
    assert served_sentence({name: ap for name, ap in MEASURED.items() if "top" not in name}) == ""
