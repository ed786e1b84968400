"""A project's update.yml proposes each release as one pull request: its steps run in clones, with a gh that records."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from generator.answers.questions import TEMPLATE
from generator.render.git import conflicts, run
from generator.render.project import ANSWERS_FILE, name_source, read_files
from generator.update.history import NEXT, History, clone_history, read_releases
from generator.update.replay import commit_all, copy_project, put_under_git, update
from tests.support.processes import PATH, write_program
from tests.support.versions import MadeUp, append

FILE = ".github/workflows/update.yml"
WORKFLOW = yaml.safe_load((TEMPLATE / "template" / FILE).read_text())
UPDATE, _, PROPOSE = WORKFLOW["jobs"]["propose"]["steps"][-3:]
BRANCH, TITLE = "update-from-template", f"Update from the template: {NEXT}"
GITHUB = {"GITHUB_REF_NAME": "main", "GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "me/net"}
# It records its arguments, and knows the pull request that a test has written.
GH = """printf '%s\\037' "$@" >>"$PLACE/calls"
printf '\\036' >>"$PLACE/calls"
[ "$1 $2" != "pr view" ] || cat "$PLACE/pull-request" """


class Server:
    """The repository of a project, and what its workflow has done there."""

    def __init__(self, place: Path, project: Path, source: str) -> None:
        self.place, self.repository = place, place / "repository.git"
        self.calls: list[list[str]] = []  # of gh in the last run, without its look at the pull request
        name_source(project, source)
        put_under_git(project)
        run(place, "clone", "--quiet", "--bare", str(project), str(self.repository))
        write_program(place / "bin" / "gh", GH)

    def clone(self, branch: str = "main") -> Path:
        clone = self.place / f"clone-{len([*self.place.glob('clone-*')])}"
        run(self.place, "clone", "--quiet", "--branch", branch, str(self.repository), str(clone))
        return clone

    def push(self, clone: Path) -> None:
        commit_all(clone)
        run(clone, "push", "--quiet")

    def heads(self) -> dict[str, str]:
        lines = run(self.repository, "branch", "--format=%(refname:short) %(objectname)").splitlines()
        return dict(line.split() for line in lines)

    def set_pull_request(self, state: str) -> None:
        (self.place / "pull-request").write_text(f"{state} 7 {TITLE}\n")

    def propose(self, *, code: int = 0, tests: str = "success", own_token: bool = True) -> str:
        """Run the workflow, as if its tests had this outcome, and return what its steps print."""
        clone, output = self.clone(), self.place / "output"
        output.write_text("")
        self.calls = []
        printed = self.run_step(UPDATE, {"secrets.UPDATE_TOKEN != ''": str(own_token).lower()}, clone, code)
        outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        if outputs:
            printed += self.open_pull_request(clone, "skipped" if outputs["conflicts"] else tests, **outputs)
        return printed

    def open_pull_request(self, clone: Path, tests: str, version: str, conflicts: str) -> str:
        values = {"secrets.UPDATE_TOKEN || github.token": "token", "steps.tests.outcome": tests}
        values |= {"steps.update.outputs.version": version, "steps.update.outputs.conflicts": conflicts}
        calls = self.place / "calls"
        calls.write_text("")
        printed = self.run_step(PROPOSE, values, clone)
        found = [call.split("\037")[:-1] for call in calls.read_text().split("\036")[:-1]]
        self.calls = [call for call in found if call[:2] not in (["pr", "view"], ["auth", "setup-git"])]
        return printed

    def run_step(self, step: dict[str, dict[str, str]], values: dict[str, str], clone: Path, code: int = 0) -> str:
        assert "${{" not in step["run"], "GitHub would put a value into the script as it is"
        own = {name: values[value.removeprefix("${{ ").removesuffix(" }}")] for name, value in step["env"].items()}
        about = {"PLACE": str(self.place), "GITHUB_OUTPUT": str(self.place / "output"), "GITHUB_RUN_ID": "5"}
        tools = {"PATH": f"{self.place / 'bin'}:{PATH}", "COPIER_CACHE_DIR": str(self.place / "cache")}
        settings = {name: value for name, value in os.environ.items() if not re.match("GIT_(AUTHOR|COMMITTER)_", name)}
        environment = {**settings, **GITHUB, **WORKFLOW["env"], **about, **tools, **own}
        command = ["bash", "-e", "-c", str(step["run"])]
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> History:
    return clone_history(tmp_path_factory.mktemp("released") / "history", read_releases())


@pytest.fixture
def server(released: History, tmp_path: Path) -> Server:
    """A project of version 2.0.0 whose owner has edited two files, and whose template is at a URL."""
    project = tmp_path / "project"
    copy_project(released.folder, "v2.0.0", {"package_name": "net"}, project)
    append(project / "net" / "task.py", "# mine\n")
    append(project / "train.py", "# mine\n")
    return Server(tmp_path, project, f"git+file://{released.folder}")


def test_a_release_is_one_pull_request_that_later_runs_refresh(server: Server) -> None:
    server.propose()
    expected = server.clone()
    update(expected, NEXT)
    assert server.heads().keys() == {"main", BRANCH}
    assert read_files(server.clone(BRANCH)) == read_files(expected)
    [[*command, body]] = server.calls
    assert command == ["pr", "create", "--base", "main", "--head", BRANCH, "--title", TITLE, "--body"]
    assert f"merged {NEXT} of the template" in body
    tests = "Tests: success (https://github.com/me/net/actions/runs/5)"
    assert body.endswith(f"\n\n- Conflicts, which you must resolve: none\n- {tests}")
    server.set_pull_request("OPEN")
    clone = server.clone()
    append(clone / "net" / "model.py", "# Of another day.\n")
    server.push(clone)
    server.propose(tests="failure")
    assert server.heads().keys() == {"main", BRANCH}
    assert (server.clone(BRANCH) / "net" / "model.py").read_text().endswith("# Of another day.\n")
    assert run(server.repository, "merge-base", "main", BRANCH) == server.heads()["main"]
    [call] = server.calls
    assert call[:5] == ["api", "--silent", "--method", "PATCH", "repos/{owner}/{repo}/pulls/7"]
    assert "- Tests: failure (" in call[-1]
    run(server.repository, "update-ref", "refs/heads/main", BRANCH)
    before = server.heads()
    assert (server.propose(), server.calls, server.heads()) == ("", [], before), "nothing is new"


def test_conflicts_are_in_the_branch_and_named(server: Server) -> None:
    clone = server.clone()
    edited = ["README.md", "net/runtime/launcher.py"]
    for path in edited:
        (clone / path).write_text("mine\n")
    server.push(clone)
    server.propose()
    assert conflicts(read_files(server.clone(BRANCH))) == edited
    [[*_, body]] = server.calls
    assert f"- Conflicts, which you must resolve: {', '.join(edited)}\n- Tests: skipped (" in body


def test_what_the_owner_decided_about_a_pull_request_stays(server: Server) -> None:
    def propose_again(version: str = NEXT) -> str:
        clone = server.clone()
        append(clone / "train.py", "# Updated.\n")
        run(clone, "commit", "--quiet", "--all", "--message", "Update", f"--author=bot <{WORKFLOW['env']['AUTHOR']}>")
        return server.open_pull_request(clone, "success", version, "")

    propose_again()
    server.set_pull_request("OPEN")
    propose_again()
    assert server.calls[0][:2] == ["api", "--silent"], "the branch has only commits of the workflow"
    clone = server.clone(BRANCH)
    append(clone / "train.py", "# Resolved.\n")
    server.push(clone)
    before = server.heads()
    assert "::notice::the pull request stays as it is: it has commits of yours" in propose_again()
    assert (server.calls, server.heads()) == ([], before)
    server.set_pull_request("CLOSED")
    assert f"::notice::{NEXT} is not proposed again: you closed its pull request" in propose_again()
    assert (server.calls, server.heads()) == ([], before)
    propose_again("v99999.1")
    assert [call[:2] for call in server.calls] == [["pr", "create"]]


def test_what_cannot_be_proposed_is_refused_in_one_line(server: Server, released: History) -> None:
    before = server.heads()
    printed = server.propose(code=1, own_token=False)
    assert "::error::this release changes .github/workflows: add the secret UPDATE_TOKEN" in printed
    clone = server.clone()
    name_source(clone, str(released.folder))
    server.push(clone)
    [line] = server.propose(code=1).splitlines()
    assert line.startswith(f"::error::_src_path in {ANSWERS_FILE} is a local folder: ")
    name_source(clone, "git+file:///nowhere.git")
    server.push(clone)
    server.propose(code=1)
    assert (server.calls, server.heads().keys()) == ([], before.keys())


def test_no_update_restores_the_workflow_after_its_owner_deleted_it(made_up: MadeUp, tmp_path: Path) -> None:
    project = tmp_path / "project"
    copy_project(made_up.folder, "v1.0.0", {}, project)
    put_under_git(project)
    (project / FILE).unlink()
    commit_all(project)
    for version, path in (("1.1.0", "template/README.md.jinja"), ("1.2.0", f"template/{FILE}")):
        append(made_up.folder / path, "# A new line.\n")
        made_up.release(version)
        update(project)
        assert not (project / FILE).exists()
        assert conflicts(read_files(project)) == []
        assert f"_commit: v{version}\n" in (project / ANSWERS_FILE).read_text()
        commit_all(project)
    assert (project / "README.md").read_text().endswith("# A new line.\n")
