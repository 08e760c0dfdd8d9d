from e2b import CommandExitException, NotFoundException, PtySize, SandboxException, TimeoutException

from support import NO_PID, Collected, both, settle


class Terminal:
    """A terminal whose screen is read until it shows what is awaited."""

    def __init__(self, case):
        self._case = case
        self._screen = Collected()
        self.handle = None

    @classmethod
    async def start(cls, case, **options):
        terminal = cls(case)
        if case.is_async:
            options["on_data"] = terminal._screen
        terminal.handle = await settle(case.pty.create(PtySize(rows=24, cols=80), **options))
        terminal._events = None if case.is_async else iter(terminal.handle)
        return terminal

    @classmethod
    async def follow(cls, case, pid):
        terminal = cls(case)
        options = {"on_data": terminal._screen} if case.is_async else {}
        terminal.handle = await settle(case.pty.connect(pid, **options))
        terminal._events = None if case.is_async else iter(terminal.handle)
        return terminal

    def text(self):
        return b"".join(self._screen.items).decode()

    async def type(self, text):
        await settle(self._case.pty.send_stdin(self.handle.pid, text.encode()))

    async def shows(self, text):
        if self._events is None:
            await self._screen.until(lambda _: text in self.text())
            return
        while text not in self.text():
            _out, _err, data = next(self._events)
            self._screen(data)


@both
class Pty:
    async def test_a_terminal_is_a_login_shell_of_the_default_user(self):
        terminal = await Terminal.start(self)
        await terminal.type('echo "[$(id -un) $TERM $LANG $LC_ALL $(tty | cut -c1-9)]"\n')
        await terminal.shows("[user xterm-256color C.UTF-8 C.UTF-8 /dev/pts/]\r\n")
        await terminal.type("exit\n")
        result = await settle(terminal.handle.wait())
        self.assertEqual((result.exit_code, result.stdout, result.stderr, result.error), (0, "", "", None))

    async def test_a_terminal_takes_its_variables_user_and_directory(self):
        envs = {"TERM": "dumb", "MARK": "x y"}
        terminal = await Terminal.start(self, envs=envs, user="root", cwd=self.dir)
        await terminal.type('echo "[$(id -un) $TERM $MARK $PWD]"\n')
        await terminal.shows(f"[root dumb x y {self.dir}]\r\n")
        await settle(terminal.handle.kill())

    async def test_a_terminal_has_the_size_it_was_given_and_takes_another(self):
        terminal = await Terminal.start(self)
        await terminal.type('echo "[$(tput cols) $(tput lines)]"\n')
        await terminal.shows("[80 24]\r\n")
        await settle(self.pty.resize(terminal.handle.pid, PtySize(rows=30, cols=100)))
        await terminal.type('echo "[$(tput cols) $(tput lines)]"\n')
        await terminal.shows("[100 30]\r\n")
        await settle(terminal.handle.kill())

    async def test_the_exit_code_of_a_terminal_is_its_shells(self):
        terminal = await Terminal.start(self)
        await terminal.type("exit 5\n")
        error = await self.raises(CommandExitException, terminal.handle.wait)
        self.assertEqual((error.exit_code, error.error), (5, "exit status 5"))

    async def test_keys_may_be_streamed(self):
        terminal = await Terminal.start(self)
        if self.is_async:
            async with self.pty.stream_input(terminal.handle.pid) as stream:
                await stream.send("exit ")
                await stream.send(b"6\n")
        else:
            self.pty.stream_input(terminal.handle.pid, ["exit ", b"6\n"])
        error = await self.raises(CommandExitException, terminal.handle.wait)
        self.assertEqual(error.exit_code, 6)

    async def test_a_second_client_follows_a_terminal(self):
        terminal = await Terminal.start(self)
        other = await Terminal.follow(self, terminal.handle.pid)
        self.assertEqual(other.handle.pid, terminal.handle.pid)
        await terminal.type('echo bo""th\n')
        await terminal.shows("both\r\n")
        await other.shows("both\r\n")
        await settle(terminal.handle.disconnect())
        await other.type("exit 4\n")
        error = await self.raises(CommandExitException, other.handle.wait)
        self.assertEqual(error.exit_code, 4)

    async def test_a_terminal_is_listed_until_it_is_killed(self):
        terminal = await Terminal.start(self, envs={"TERM": "dumb"})
        pid = terminal.handle.pid
        listed = {process.pid: process for process in await settle(self.commands.list())}[pid]
        self.assertEqual((listed.cmd, listed.args), ("/bin/bash", ["-i", "-l"]))
        self.assertEqual(listed.envs, {"TERM": "dumb", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"})
        self.assertIs(await settle(self.pty.kill(pid)), True)
        error = await self.raises(CommandExitException, terminal.handle.wait)
        self.assertEqual((error.exit_code, error.error), (-1, "signal: killed"))
        await self.gone(pid)
        self.assertIs(await settle(self.pty.kill(pid)), False)

    async def test_a_terminal_past_its_time_is_a_timeout_and_the_shell_is_dead(self):
        terminal = await Terminal.start(self, timeout=0.7)
        await self.raises(TimeoutException, terminal.handle.wait)
        await self.gone(terminal.handle.pid)

    async def test_what_is_no_terminal_has_no_size_and_takes_no_keys(self):
        handle = await settle(self.commands.run("sleep 300", background=True, stdin=True))
        await self.raises(SandboxException, lambda: self.pty.resize(handle.pid, PtySize(rows=9, cols=9)))
        await self.raises(SandboxException, lambda: self.pty.send_stdin(handle.pid, b"x"))
        await settle(handle.kill())

    async def test_a_terminal_that_is_not_there_is_not_found(self):
        await self.raises(NotFoundException, lambda: self.pty.resize(NO_PID, PtySize(rows=9, cols=9)))
        await self.raises(NotFoundException, lambda: self.pty.send_stdin(NO_PID, b"x"))
        self.assertIs(await settle(self.pty.kill(NO_PID)), False)
