"""Put on PYTHONPATH for the commands of batch mode: input() and getpass() ask whoever runs the
session, over a unix socket, when standard input is nothing that could be read."""
import os
import sys


def _install():
    path = os.environ.get("BERTH_INPUT_SOCKET")
    if not path or os.environ.get("_BACKEND_BATCH_MODE") == "1":
        return
    try:
        have, null = os.fstat(0), os.stat(os.devnull)
        if (have.st_dev, have.st_ino) != (null.st_dev, null.st_ino) and have.st_rdev != null.st_rdev:
            return  # a file, a pipe or a terminal: read that
    except OSError:
        pass
    import builtins

    def ask(prompt, password):
        import json
        import socket
        if prompt:
            sys.stdout.write(str(prompt))
        sys.stdout.flush()
        sys.stderr.flush()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            try:
                s.connect(path)
            except OSError:
                raise EOFError("nobody answers")
            s.sendall(json.dumps({"password": password}).encode() + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                part = s.recv(1 << 16)
                if not part:
                    raise EOFError("nobody answers")
                data += part
        reply = json.loads(data.decode("utf-8"))
        if reply.get("eof"):
            raise EOFError("no more input")
        return reply["text"]

    def visible(prompt="", /):
        return ask(prompt, False)

    builtins.input = visible

    class Finder:
        """Replaces getpass.getpass when getpass is imported, not before: most programs never do."""

        @staticmethod
        def find_spec(name, _path=None, _target=None):
            if name != "getpass":
                return None
            sys.meta_path.remove(Finder)
            import importlib.util
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.loader is not None:
                spec.loader = Loader(spec.loader)
            return spec

    class Loader:
        def __init__(self, inner):
            self.inner = inner

        def create_module(self, spec):
            return self.inner.create_module(spec)

        def exec_module(self, module):
            self.inner.exec_module(module)
            module.getpass = lambda prompt="Password: ", stream=None, *, echo_char=None: ask(prompt, True)

    sys.meta_path.insert(0, Finder)


def _chain():
    """The image may have a sitecustomize of its own, which ours hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        if mine is not None:
            sys.modules["sitecustomize"] = mine


try:
    _install()
finally:
    _chain()
