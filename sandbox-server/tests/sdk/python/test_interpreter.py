"""The code interpreter's sandbox, as far as it needs no kernel inside."""

import unittest

from e2b_code_interpreter import AsyncSandbox, Sandbox


class Interpreter(unittest.IsolatedAsyncioTestCase):
    def test_the_synchronous_one_is_a_sandbox(self):
        with Sandbox.create("base", metadata={"kind": "interpreter"}) as sandbox:
            self.assertEqual(sandbox.commands.run("echo $((6*7))").stdout, "42\n")
            sandbox.files.write("f.txt", "x")
            same = Sandbox.connect(sandbox.sandbox_id)
            self.assertEqual(same.files.read("f.txt"), "x")
            self.assertEqual(same.get_info().metadata, {"kind": "interpreter"})

    async def test_the_asynchronous_one_is_a_sandbox(self):
        async with await AsyncSandbox.create("base") as sandbox:
            self.assertEqual((await sandbox.commands.run("echo $((6*7))")).stdout, "42\n")
            await sandbox.files.write("f.txt", "x")
            same = await AsyncSandbox.connect(sandbox.sandbox_id)
            self.assertEqual(await same.files.read("f.txt"), "x")
