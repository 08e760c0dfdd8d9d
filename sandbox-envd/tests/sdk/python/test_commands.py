from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)

from support import NO_PID, Collected, both, settle


def fields(result):
    return result.stdout, result.stderr, result.exit_code, result.error


@both
class Commands:
    async def test_a_foreground_command_gives_its_output_and_exit_code(self):
        result = await self.run_command("echo out; echo err >&2")
        self.assertEqual(fields(result), ("out\n", "err\n", 0, None))

    async def test_a_failing_command_raises_all_that_is_known_of_it(self):
        error = await self.raises(
            CommandExitException, lambda: self.commands.run("echo out; echo err >&2; exit 42")
        )
        self.assertEqual(fields(error), ("out\n", "err\n", 42, "exit status 42"))
        self.assertEqual(str(error), "Command exited with code 42 and error:\nerr\n")

    async def test_a_command_that_kills_itself_shows_the_signal(self):
        error = await self.raises(CommandExitException, lambda: self.commands.run("kill -SEGV $$"))
        self.assertEqual(error.exit_code, -1)
        self.assertRegex(error.error, "^signal: segmentation fault")

    async def test_callbacks_are_given_the_output_as_it_comes(self):
        out, err = [], []
        await self.run_command("echo 1; echo 2 >&2; echo 3", on_stdout=out.append, on_stderr=err.append)
        self.assertEqual(("".join(out), "".join(err)), ("1\n3\n", "2\n"))

    async def test_output_need_not_be_retained(self):
        out = []
        result = await self.run_command("echo 1", on_stdout=out.append, retain_output=False)
        self.assertEqual((fields(result), out), ((None, None, 0, None), ["1\n"]))

    async def test_special_characters_reach_the_command_as_they_are(self):
        text = "!@#$%^&*()_+{}|:<>?-=[]\\;',./~`"
        self.assertEqual(await self.stdout(f"cat <<'END'\n{text}\n\"a  b\"\nEND"), f'{text}\n"a  b"\n')

    async def test_text_outside_ascii_comes_back_as_it_was(self):
        text = "Čau, 世界 🌍 é"
        result = await self.run_command(f"echo '{text}'; echo '{text}' >&2")
        self.assertEqual((result.stdout, result.stderr), (f"{text}\n", f"{text}\n"))

    async def test_a_broken_byte_after_8191_good_ones_is_one_replacement_character(self):
        out = await self.stdout("head -c 8191 /dev/zero | tr '\\0' a; printf '\\xe2'")
        self.assertEqual(out, "a" * 8191 + "\ufffd")

    async def test_characters_that_lie_across_chunks_are_whole(self):
        self.assertEqual(await self.stdout("head -c 100000 /dev/zero | sed 's/\\x00/世/g'"), "世" * 100_000)

    async def test_large_output_is_complete_and_in_order(self):
        out = await self.stdout("seq 1 300000")
        self.assertTrue(out == "".join(f"{number}\n" for number in range(1, 300_001)), len(out))

    async def test_a_command_runs_as_the_default_user_in_its_home(self):
        out = await self.stdout('id -un; id -u; id -gn; pwd; echo "$HOME $USER $LOGNAME"')
        self.assertEqual(out, "user\n1000\nuser\n/home/user\n/home/user user user\n")

    async def test_a_command_runs_as_root_when_asked(self):
        out = await self.stdout('id -un; id -u; pwd; echo "$HOME $USER $LOGNAME"', user="root")
        self.assertEqual(out, "root\n0\n/root\n/root root root\n")

    async def test_a_command_of_a_user_that_does_not_exist_is_refused(self):
        await self.raises(
            AuthenticationException, lambda: self.commands.run("true", user="nobody-of-that-name")
        )

    async def test_a_command_runs_where_it_is_told(self):
        self.assertEqual(await self.stdout("pwd", cwd=self.dir), f"{self.dir}\n")

    async def test_a_directory_that_is_not_there_is_an_invalid_argument(self):
        await self.raises(
            InvalidArgumentException, lambda: self.commands.run("pwd", cwd=f"{self.dir}/missing")
        )

    async def test_variables_of_a_command_are_its_own(self):
        envs = {"FIRST": "a b", "SECOND": "", "HOME": "/elsewhere", "QUOTE": "\"'$HOME"}
        cmd = 'printf "%s|" "$FIRST" "${SECOND-unset}" "$HOME" "$QUOTE"'
        self.assertEqual(await self.stdout(cmd, envs=envs), "a b||/elsewhere|\"'$HOME|")
        self.assertEqual(await self.stdout('echo "${FIRST-unset} $HOME"'), "unset /home/user\n")

    async def test_a_background_command_is_listed_until_it_is_killed(self):
        cmd = "echo up; sleep 300"
        handle = await settle(
            self.commands.run(cmd, background=True, cwd=self.dir, envs={"MARK": "1"}, timeout=0)
        )
        listed = {process.pid: process for process in await settle(self.commands.list())}[handle.pid]
        self.assertEqual(
            (listed.cmd, listed.args, listed.envs, listed.cwd, listed.tag),
            ("/bin/bash", ["-l", "-c", cmd], {"MARK": "1"}, self.dir, None),
        )
        self.assertIs(await settle(handle.kill()), True)
        error = await self.raises(CommandExitException, handle.wait)
        self.assertEqual((error.exit_code, error.error), (-1, "signal: killed"))
        await self.gone(handle.pid)
        self.assertIs(await settle(self.commands.kill(handle.pid)), False)
        self.assertNotIn(handle.pid, [process.pid for process in await settle(self.commands.list())])

    async def test_what_is_not_there_cannot_be_killed_followed_or_fed(self):
        self.assertIs(await settle(self.commands.kill(NO_PID)), False)
        text = f"process with pid {NO_PID} not found"
        await self.raises(NotFoundException, lambda: self.commands.connect(NO_PID), text)
        await self.raises(NotFoundException, lambda: self.commands.send_stdin(NO_PID, "x"))
        await self.raises(NotFoundException, lambda: self.commands.close_stdin(NO_PID))

    async def test_stdin_takes_text_and_bytes_and_ends_when_it_is_closed(self):
        handle = await settle(self.commands.run("cat", background=True, stdin=True))
        await settle(handle.send_stdin("héllo\n"))
        await settle(handle.send_stdin(b"x\xe2\x82"))
        await settle(self.commands.send_stdin(handle.pid, b"\xac\n"))
        await settle(handle.close_stdin())
        self.assertEqual(fields(await settle(handle.wait())), ("héllo\nx€\n", "", 0, None))

    async def test_special_characters_and_several_lines_reach_the_input_as_they_are(self):
        text = "!@#$%^&*()_+{}|:<>?-=[]\\;',./~`\"\nsecond line\n\n\ttabbed\n"
        handle = await settle(self.commands.run("cat", background=True, stdin=True))
        await settle(self.commands.send_stdin(handle.pid, text))
        await settle(self.commands.close_stdin(handle.pid))
        self.assertEqual((await settle(handle.wait())).stdout, text)

    async def test_variables_reach_what_a_command_starts(self):
        cmd = "python3 -c 'import os; print(os.environ[\"MINE\"])'"
        self.assertEqual((await settle(self.commands.run(cmd, envs={"MINE": "a b"}))).stdout, "a b\n")

    async def test_stdin_may_be_closed_twice(self):
        handle = await settle(self.commands.run("cat; sleep 300", background=True, stdin=True))
        await settle(handle.close_stdin())
        await settle(handle.close_stdin())
        await settle(handle.kill())

    async def test_without_stdin_a_command_reads_an_end_at_once(self):
        self.assertEqual(await self.stdout("cat; echo end"), "end\n")

    async def test_input_for_a_command_without_stdin_is_refused(self):
        handle = await settle(self.commands.run("sleep 300", background=True))
        await self.raises(SandboxException, lambda: handle.send_stdin("lost"))
        await settle(handle.kill())

    async def test_streamed_input_arrives_in_order(self):
        handle = await settle(self.commands.run("cat", background=True, stdin=True))
        chunks = [f"{number} " * 500 for number in range(200)] + [b"\xe2\x82", b"\xac"]
        if self.is_async:
            async with self.commands.stream_input(handle.pid) as stream:
                for chunk in chunks:
                    await stream.send(chunk)
        else:
            self.commands.stream_input(handle.pid, chunks)
        await settle(handle.close_stdin())
        result = await settle(handle.wait())
        self.assertTrue(result.stdout == "".join(chunks[:-2]) + "€", len(result.stdout))

    async def test_streamed_input_for_no_process_is_not_found(self):
        if self.is_async:
            stream = self.commands.stream_input(NO_PID)
            await self.raises(NotFoundException, stream.close)
        else:
            await self.raises(NotFoundException, lambda: self.commands.stream_input(NO_PID, ["x"]))

    async def test_a_second_client_follows_a_process_from_the_moment_it_connects(self):
        seen = Collected()
        options = {"on_stdout": seen} if self.is_async else {}
        cmd = "read -r a; echo $a; read -r b; echo $b"
        handle = await settle(self.commands.run(cmd, background=True, stdin=True, **options))
        await settle(handle.send_stdin("before\n"))
        if not self.is_async:
            seen(next(iter(handle))[0])
        await seen.until(lambda items: items == ["before\n"])
        other = await settle(self.commands.connect(handle.pid))
        self.assertEqual(other.pid, handle.pid)
        await settle(other.send_stdin("after\n"))
        self.assertEqual(fields(await settle(other.wait())), ("after\n", "", 0, None))

    async def test_a_client_that_leaves_does_not_end_the_process(self):
        handle = await settle(
            self.commands.run('read -r line; echo "$line"; exit 3', background=True, stdin=True)
        )
        await settle(handle.disconnect())
        other = await settle(self.commands.connect(handle.pid))
        await settle(other.send_stdin("still here\n"))
        error = await self.raises(CommandExitException, other.wait)
        self.assertEqual((error.exit_code, error.stdout), (3, "still here\n"))

    async def test_the_exit_of_a_process_that_just_ended_is_still_told(self):
        handle = await settle(self.commands.run("exit 7", background=True))
        await self.raises(CommandExitException, handle.wait)
        late = await settle(self.commands.connect(handle.pid))
        error = await self.raises(CommandExitException, late.wait)
        self.assertEqual(fields(error), ("", "", 7, "exit status 7"))

    async def test_a_command_past_its_time_is_a_timeout_and_the_process_is_dead(self):
        handle = await settle(self.commands.run("echo up; sleep 300", background=True, timeout=0.7))
        await self.raises(TimeoutException, handle.wait)
        await self.gone(handle.pid)

    async def test_a_foreground_command_past_its_time_is_a_timeout(self):
        await self.raises(TimeoutException, lambda: self.commands.run("sleep 300", timeout=0.5))

    async def test_a_connection_past_its_time_ends_alone(self):
        handle = await settle(
            self.commands.run('read -r line; echo "$line"', background=True, stdin=True)
        )
        other = await settle(self.commands.connect(handle.pid, timeout=0.3))
        await self.raises(TimeoutException, other.wait)
        await settle(handle.send_stdin("alive\n"))
        self.assertEqual((await settle(handle.wait())).stdout, "alive\n")

    async def test_what_a_command_leaves_in_the_background_does_not_hold_its_end(self):
        out = await self.stdout("sleep 300 & echo $!")
        self.assertRegex(out, r"^\d+\n$")
        await self.run_command(f"kill -9 {out.strip()}")

    async def test_the_sandbox_is_running(self):
        self.assertIs(await settle(self.sandbox.is_running()), True)


@both
class Handles:
    async def test_output_can_be_iterated_to_its_end(self):
        seen = Collected()
        cmd = "echo one; echo two >&2"
        if self.is_async:
            handle = await self.commands.run(cmd, background=True, on_stdout=seen, on_stderr=seen)
            await handle.wait()
            self.assertEqual((handle.stdout, handle.stderr, handle.exit_code), ("one\n", "two\n", 0))
        else:
            for out, err, _pty in self.commands.run(cmd, background=True):
                seen(out or err)
        self.assertEqual(sorted(seen.items), ["one\n", "two\n"])

    async def test_iteration_past_the_time_is_a_timeout(self):
        handle = await settle(self.commands.run("echo up; sleep 300", background=True, timeout=0.7))
        if self.is_async:
            await self.raises(TimeoutException, handle.wait)
            self.assertEqual(handle.stdout, "up\n")
        else:
            seen = []
            with self.assertRaises(TimeoutException):
                for out, _err, _pty in handle:
                    seen.append(out)
            self.assertEqual(seen, ["up\n"])
