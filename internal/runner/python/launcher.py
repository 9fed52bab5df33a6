"""Started by the runner to execute cells: as an ipykernel where there is one, else as a
small interpreter of its own that talks over two inherited pipes.

Descriptor 3 takes frames to the runner, descriptor 4 gives frames from it. A frame is
one letter, four bytes of length (big endian) and the payload:

  to the runner   H hello ("ipykernel" or "shim")   o, e output   i question (JSON)
                  f cell finished (JSON)            c completions (JSON)
  from the runner x cell (JSON)   a answer (JSON)   c completion request (JSON)
"""
import gc
import os
import sys

OUT, IN = 3, 4


def send(kind, payload):
    data = kind + len(payload).to_bytes(4, "big") + payload
    view = memoryview(data)
    while view:
        view = view[os.write(OUT, view):]


def main():
    for fd in (OUT, IN):
        os.set_inheritable(fd, False)
    if sys.path and sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        sys.path[0] = ""
    kernel = None
    if sys.argv[1] != "-":
        gc.disable()  # modules are no garbage, and hundreds of them come now
        try:
            kernel = kernel_app()
        except Exception:
            kernel = None
        finally:
            if hasattr(gc, "unfreeze"):  # both together make everything old without looking at it
                gc.freeze()
                gc.unfreeze()
            gc.enable()
    if kernel is not None:
        keep_everything()
        send(b"H", b"ipykernel")
        os.close(OUT)
        os.close(IN)
        sys.argv = ["ipykernel_launcher", "-f", sys.argv[1], "--HistoryManager.enabled=False"]
        kernel.launch_new_instance()
        return
    shim()


def kernel_app():
    """Imports ipykernel without what no cell needs at first: a debugger that nobody can talk to here, IPython's own terminal, and the
    analysis of code for completions. Together they are more than half of the time until a session answers. IPython.embed, which is of
    that terminal, is imported when somebody asks for it, and jedi with the first completion. An ipykernel that does not come up without
    them gets them."""
    import types
    terminal = "IPython.terminal.embed"
    stand_ins = {"debugpy": None, terminal: types.ModuleType(terminal)}
    stand_ins[terminal].embed = None
    jedi = late_jedi()
    stand_ins.update(jedi)
    missing = {name: module for name, module in stand_ins.items() if name not in sys.modules}
    sys.modules.update(missing)
    try:
        from ipykernel import kernelapp
    except Exception:
        kernelapp = None
    finally:
        for name in missing:
            sys.modules.pop(name, None)
    if jedi:
        jedi["jedi"].begin()
    ipython = sys.modules.get("IPython")
    if ipython is not None and vars(ipython).get("embed", ipython) is None:
        del ipython.embed
        before = vars(ipython).get("__getattr__")

        def late(name):
            if name == "embed":
                from IPython.terminal.embed import embed
                ipython.embed = embed
                return embed
            if before is not None:
                return before(name)
            raise AttributeError("module 'IPython' has no attribute %r" % name)

        ipython.__getattr__ = late
    if kernelapp is None:
        from ipykernel import kernelapp
    return kernelapp


def late_jedi():
    """Returns stand-ins of the modules of jedi that IPython's completer imports, by name; none where there is no jedi. The completer
    keeps the one of jedi itself, which imports the real one as soon as anything of it is asked for, and passes on what it was set to."""
    import importlib.util
    import types
    try:
        if "jedi" in sys.modules or importlib.util.find_spec("jedi") is None:
            return {}
    except Exception:
        return {}

    class Jedi(types.ModuleType):
        def begin(self):
            """Ends the imports: from now on every name is the real one's."""
            wanted = vars(vars(self).pop("settings"))
            del self.api

            def late(name):
                if name.startswith("__"):
                    raise AttributeError("module 'jedi' has no attribute %r" % name)
                import jedi
                for setting, value in wanted.items():
                    setattr(jedi.settings, setting, value)
                wanted.clear()
                completer = sys.modules.get("IPython.core.completer")
                if completer is not None and vars(completer).get("jedi") is self:
                    completer.jedi = jedi
                return getattr(jedi, name)

            self.__getattr__ = late

    made = {name: types.ModuleType(name) for name in ("jedi.api", "jedi.api.helpers", "jedi.api.classes")}
    made["jedi"] = Jedi("jedi")
    made["jedi"].settings, made["jedi"].api = types.SimpleNamespace(), made["jedi.api"]
    for name in ("helpers", "classes"):
        setattr(made["jedi.api"], name, made["jedi.api." + name])
    for name in ("jedi", "jedi.api"):
        made[name].__path__ = []
    return made


def keep_everything():
    """A publishing socket throws messages away when its reader is late by a thousand of them. Here it
    waits instead, and the printing code with it (see kernel_setup.py), so that nothing is lost and
    nothing piles up; the runner also stops this process while its own reader is behind."""
    import zmq
    plain = zmq.Context.socket

    def socket(self, socket_type, *args, **kwargs):
        made = plain(self, socket_type, *args, **kwargs)
        if socket_type in (zmq.PUB, zmq.XPUB):
            made.set(zmq.SNDHWM, 128)
            made.set(zmq.XPUB_NODROP, 1)
        return made

    zmq.Context.socket = socket


def shim():
    import ast
    import builtins
    import io
    import json
    import linecache
    import signal
    import threading
    import traceback

    lock = threading.RLock()
    state = {"cell": False, "sending": False, "pending": False, "count": 0, "question": 0}
    main_thread = threading.main_thread()

    def on_interrupt(_sig, _frame):
        # Nothing runs: there is nothing to interrupt. A frame is being written: it is
        # finished first, or the runner could not read what follows.
        if not state["cell"]:
            return
        if state["sending"]:
            state["pending"] = True
            return
        raise KeyboardInterrupt

    def emit(kind, payload):
        mine = threading.current_thread() is main_thread
        with lock:
            outer = state["sending"] if mine else False
            if mine:
                state["sending"] = True
            try:
                send(kind, payload)
            finally:
                if mine:
                    state["sending"] = outer
        if mine and not outer and state["pending"]:
            state["pending"] = False
            raise KeyboardInterrupt

    class Raw(io.RawIOBase):
        def __init__(self, kind, fd):
            self.kind, self.fd = kind, fd

        def writable(self):
            return True

        def fileno(self):
            return self.fd

        def write(self, data):
            data = bytes(data)
            if self.kind == b"e":  # keep the order of the two streams
                try:
                    sys.stdout.flush()
                except Exception:
                    pass
            for i in range(0, len(data), 1 << 16):
                emit(self.kind, data[i:i + (1 << 16)])
            return len(data)

    def stream(kind, fd):
        return io.TextIOWrapper(io.BufferedWriter(Raw(kind, fd), 8192), encoding="utf-8", errors="backslashreplace", line_buffering=True)

    buffered = bytearray()

    def receive():
        """Returns the next frame. An interrupt leaves what has been read so far in the buffer."""
        while True:
            if len(buffered) >= 5:
                size = 5 + int.from_bytes(buffered[1:5], "big")
                if len(buffered) >= size:
                    kind, payload = bytes(buffered[:1]), bytes(buffered[5:size])
                    del buffered[:size]
                    return kind, json.loads(payload.decode("utf-8"))
            part = os.read(IN, 1 << 16)
            if not part:
                os._exit(0)  # the runner is gone
            buffered.extend(part)

    asking = threading.RLock()

    def ask(prompt, password):
        with asking:
            sys.stderr.flush()
            if prompt:
                sys.stdout.write(str(prompt))
            sys.stdout.flush()
            state["question"] += 1
            number = state["question"]
            emit(b"i", json.dumps({"id": number, "password": password}).encode())
            while True:
                kind, msg = receive()
                if kind == b"a" and msg["id"] == number:
                    break
            if msg.get("eof"):
                raise EOFError("no more input")
            return msg["text"]

    class Stdin(io.TextIOBase):
        def readable(self):
            return True

        def fileno(self):
            return 0

        def readline(self, _size=-1):
            try:
                return ask("", False) + "\n"
            except EOFError:
                return ""

        def read(self, _size=-1):
            return "".join(iter(self.readline, ""))

        def __next__(self):
            line = self.readline()
            if not line:
                raise StopIteration
            return line

    def hidden(prompt="Password: ", stream=None, *, echo_char=None):
        return ask(prompt, True)

    def visible(prompt="", /):
        return ask(prompt, False)

    import getpass
    getpass.getpass = hidden
    builtins.input = visible

    def leave(code=None):
        raise SystemExit(code)

    module = type(sys)("__main__")
    module.__dict__.update({"__builtins__": builtins, "exit": leave, "quit": leave})
    sys.modules["__main__"] = module
    names = module.__dict__

    def run(code):
        state["count"] += 1
        filename = "<cell %d>" % state["count"]
        linecache.cache[filename] = (len(code), None, code.splitlines(True), filename)
        flags = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)

        def execute(tree, mode):
            result = eval(compile(tree, filename, mode, flags=flags, dont_inherit=True), names)
            if hasattr(result, "__await__") and result.__class__.__name__ == "coroutine":
                import asyncio
                loop = state.get("loop")
                if loop is None:
                    loop = state["loop"] = asyncio.new_event_loop()
                    asyncio.set_event_loop(loop)
                result = loop.run_until_complete(result)
            return result

        try:
            state["cell"] = True
            tree = ast.parse(code, filename, "exec")
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
                last = ast.Expression(tree.body.pop().value)
            if tree.body:
                execute(tree, "exec")
            if last is not None:
                value = execute(last, "eval")
                if value is not None:
                    names["_"] = value
                    sys.stdout.write(repr(value))
            return 0
        except SystemExit as e:
            if e.code is None:
                return 0
            if isinstance(e.code, int):
                if e.code & 0xFF:
                    sys.stderr.write("SystemExit: %d\n" % e.code)
                return e.code & 0xFF
            sys.stderr.write(str(e.code) + "\n")
            return 1
        except BaseException as e:
            state["cell"] = False
            tb = e.__traceback__
            while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
                tb = tb.tb_next
            traceback.print_exception(type(e), e, tb)
            return 130 if isinstance(e, KeyboardInterrupt) else 1
        finally:
            state["cell"] = False
            state["pending"] = False

    def complete(code):
        import re
        import rlcompleter
        word = re.search(r"[\w.]*$", code).group()
        finder, found, n = rlcompleter.Completer(names), [], 0
        try:
            while n < 1000:
                match = finder.complete(word, n)
                if match is None:
                    break
                found.append(match)
                n += 1
        except Exception:
            pass
        return sorted(set(found))

    signal.signal(signal.SIGINT, on_interrupt)
    sys.argv = [""]
    sys.stdin, sys.stdout, sys.stderr = Stdin(), stream(b"o", 1), stream(b"e", 2)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    emit(b"H", b"shim")
    while True:
        kind, msg = receive()
        if kind == b"x":
            exit_code = run(msg["code"])
            for s in (sys.stdout, sys.stderr):
                try:
                    s.flush()
                except BaseException:
                    pass
            emit(b"f", json.dumps({"id": msg["id"], "exit": exit_code}).encode())
        elif kind == b"c":
            emit(b"c", json.dumps({"id": msg["id"], "matches": complete(msg["code"])}).encode())


main()
