"""Runs commands of the official client, one JSON line each, in forks of a process that has loaded the client once.

The client is as it was installed; only its start is paid once, and the loading of what a command needs: the next fork has it. A line
{"list": true} asks for the names of all its commands, {"python": text} runs a program with the client's library.
"""
import importlib, json, os, shutil, sys, tempfile, warnings

warnings.simplefilter("ignore")  # about versions, by libraries
home = tempfile.mkdtemp(prefix="berth-client-")
os.environ.setdefault("HOME", home)  # where the client keeps its logins
import click
from ai.backend.cli.loader import load_entry_points

main = load_entry_points()


def commands(command, path):
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    ctx = click.Context(command, info_name=path[-1] if path else "backend.ai")
    for name in sorted(command.list_commands(ctx)):
        inner = command.get_command(ctx, name)
        if inner is not None:
            yield from commands(inner, path + [name])


def child(ask, out, err, loaded, where):
    before = set(sys.modules)
    os.dup2(out, 1)
    os.dup2(err, 2)
    with tempfile.TemporaryFile() as given:
        given.write(ask.get("stdin", "").encode())
        given.seek(0)
        os.dup2(given.fileno(), 0)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", closefd=False), open(2, "w", closefd=False)
    os.chdir(where)
    sys.argv = ["backend.ai"] + ask.get("args", [])
    code = 1
    try:
        if "python" in ask:
            exec(ask["python"], {"__name__": "__story__"})
        else:
            main.main(args=ask["args"], prog_name="backend.ai")
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        loaded.write("\n".join(m for m in sys.modules if m not in before))
        loaded.flush()
    finally:
        os._exit(code)


def run(ask):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile("w+") as loaded, \
            tempfile.TemporaryDirectory(dir=home) as own:
        for name, text in (ask.get("files") or {}).items():
            with open(os.path.join(own, name), "w") as f:
                f.write(text)
        pid = os.fork()
        if pid == 0:
            child(ask, out.fileno(), err.fileno(), loaded, ask.get("dir") or own)
        _, status = os.waitpid(pid, 0)
        loaded.seek(0)
        for module in loaded.read().split("\n"):
            if module.startswith(("ai.backend.", "rich.", "aiohttp.")):
                importlib.import_module(module)
        texts = []
        for f in (out, err):
            f.seek(0)
            texts.append(f.read().decode(errors="replace"))
        return {"code": os.waitstatus_to_exitcode(status), "stdout": texts[0], "stderr": texts[1]}


try:
    for line in sys.stdin:
        ask = json.loads(line)
        print(json.dumps({"commands": list(commands(main, []))} if ask.get("list") else run(ask)), flush=True)
finally:
    shutil.rmtree(home, ignore_errors=True)
