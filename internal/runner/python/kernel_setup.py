def _berth_setup():
    import io, sys, warnings, builtins
    ip = get_ipython()
    warnings.filterwarnings("ignore", message="To exit: use")
    try:
        ip.colors = "NoColor"
    except Exception:
        pass
    def leave(code=None):
        raise SystemExit(code)
    for name in ("exit", "quit"):
        ip.user_ns[name] = leave
        setattr(builtins, name, leave)
    class Stdin(io.TextIOBase):
        def readable(self):
            return True
        def fileno(self):
            return 0
        def readline(self, _size=-1):
            try:
                return builtins.input() + "\n"
            except EOFError:
                return ""
        def read(self, _size=-1):
            return "".join(iter(self.readline, ""))
        def __next__(self):
            line = self.readline()
            if not line:
                raise StopIteration
            return line
    sys.stdin = Stdin()
    kernel = ip.kernel
    ask = kernel._input_request
    def fenced(*args, **kwargs):
        # What was printed before a question must not be overtaken by it.
        sys.stdout.flush()
        sys.stderr.flush()
        ip.display_pub.publish({"application/x-berth-fence": ""})
        return ask(*args, **kwargs)
    kernel._input_request = fenced
    # A stream gathers without bound while its sending thread is behind: wait for it now and then.
    bound = 256 * 1024
    def bounded(stream):
        write, pending = stream.write, 0
        def limited(text):
            nonlocal pending
            done = write(text)
            pending += len(text)
            if pending >= bound:
                pending = 0
                stream.flush()
            return done
        stream.write = limited
    for stream in (sys.stdout, sys.stderr):
        bounded(stream)
_berth_setup()
del _berth_setup
