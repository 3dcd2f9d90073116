"""Profiles: ours, the user's over them, flags over both; every mistake is one line."""

import pytest

from benchmark.errors import UserError
from slurm import __main__ as program
from slurm.profile import Profile, limit_minutes, load_profile


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write the user's own file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(text: str) -> None:
        (tmp_path / "feddomainbed").mkdir()
        (tmp_path / "feddomainbed" / "slurm.toml").write_text(text)

    return write


def test_flags_go_over_the_users_file_and_that_over_ours(mine):
    assert load_profile("cpu") == Profile()
    mine(
        '[gpu]\npartition = "a100"\ngpus = 2\ntime = 90\n'
        '[own]\nsetup = ["source x", "y"]\n'
        "[noon]\ntime = 12:00:00\n"
    )
    gpu = load_profile("gpu", ["gpus=4", "account=lab"])
    assert (gpu.partition, gpu.gpus, gpu.account, gpu.cpus) == ("a100", 4, "lab", 4)
    assert gpu.minutes == 90
    assert load_profile("own").setup == ("source x", "y")
    assert load_profile("noon").minutes == 12 * 60
    assert load_profile("own", ["setup=cd /a/b; z", "modules=cuda/12"]).setup == ("cd /a/b", "z")


BAD = {
    "unknown profile": ("gpuu", [], "unknown SLURM profile 'gpuu', did you mean 'gpu'?"),
    "unknown key": ("cpu", ["partitoin=x"], "did you mean 'partition'? (defaults: partition=none"),
    "no value": ("cpu", ["partition"], "--slurm 'partition': write KEY=VALUE"),
    "text for a number": ("cpu", ["gpus=many"], "profile cpu.gpus=many is not of type int"),
    "negative": ("cpu", ["retries=-1"], "too small: at least 0"),
    "memory": ("cpu", ["memory=lots"], "memory=lots: write e.g. 8GB"),
    "time": ("cpu", ["time=soon"], "SLURM time 'soon': write minutes, H:M:S or D-H:M"),
    "no time": ("cpu", ["time=0"], "at least one minute"),
    "warning": ("cpu", ["time=1"], "a task of 1 min is shorter than its warning of 90 s"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_one_line(case, mine):
    name, settings, message = BAD[case]
    with pytest.raises(UserError) as error:
        load_profile(name, settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


BROKEN = {
    "not TOML": ("[gpu\n", "cannot read SLURM profiles"),
    "outside a profile": ('partition = "x"\n', "'partition' is in no profile"),
    "not a list": ("[cpu]\nsetup = 3\n", "setup is a list of texts"),
    "unknown key": ("[cpu]\nmem = 3\n", "unknown key of SLURM profile cpu 'mem'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_of_the_user_is_one_line(case, mine):
    text, message = BROKEN[case]
    mine(text)
    with pytest.raises(UserError) as error:
        load_profile("cpu")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("90:30", 91),
        ("1:30:00", 90),
        ("1-0", 1440),
        ("1-12:30", 2190),
        ("2-0:0:1", 2881),
    ],
)
def test_times_are_read_as_slurm_reads_them(text, minutes):
    assert limit_minutes(text) == minutes


def test_the_program_lists_keys_and_profiles(mine, capsys):
    mine('[own]\npartition = "a100"\n')
    with pytest.raises(SystemExit):
        program.main(["profiles"])
    shown = capsys.readouterr().out
    for name in ("array_parallelism", "retries", "own", "partition=a100", "gpu"):
        assert name in shown
