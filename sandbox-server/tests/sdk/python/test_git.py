from e2b import CommandExitException, GitUpstreamException

from support import both, settle

REPO = "/home/user/repo"


@both
class Git:
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.sandbox = await self.created()
        self.git = self.sandbox.git
        await settle(self.git.init(REPO, initial_branch="main"))
        await settle(self.git.configure_user("Ada", "ada@example.com"))
        await self.commit("a.txt", "one\n", "first")

    async def commit(self, name, content, text):
        await settle(self.sandbox.files.write(f"{REPO}/{name}", content))
        await settle(self.git.add(REPO))
        await settle(self.git.commit(REPO, text))

    async def sh(self, cmd, cwd=REPO):
        return await self.stdout(self.sandbox, cmd, cwd=cwd)

    async def test_commits_status_and_branches(self):
        self.assertEqual(await self.sh('git log -1 --format="%an %ae %s"'), "Ada ada@example.com first\n")
        await settle(self.sandbox.files.write(f"{REPO}/b.txt", "new\n"))
        status = await settle(self.git.status(REPO))
        self.assertEqual(status.current_branch, "main")
        self.assertEqual([(one.name, one.status, one.staged) for one in status.file_status], [("b.txt", "untracked", False)])
        await settle(self.git.create_branch(REPO, "side"))
        branches = await settle(self.git.branches(REPO))
        self.assertEqual((sorted(branches.branches), branches.current_branch), (["main", "side"], "side"))
        await settle(self.git.checkout_branch(REPO, "main"))
        await settle(self.git.delete_branch(REPO, "side"))
        self.assertEqual((await settle(self.git.branches(REPO))).branches, ["main"])
        await self.raises(CommandExitException, lambda: self.git.commit(REPO, "nothing"))

    async def test_a_remote_is_pushed_to_cloned_and_pulled_from(self):
        await self.sh("mkdir -p served && git init -q --bare -b main served/remote.git", cwd="/home/user")
        daemon = (
            "git daemon --reuseaddr --listen=127.0.0.1 --port=9418 --base-path=/home/user/served"
            " --export-all --enable=receive-pack"
        )
        await settle(self.sandbox.commands.run(daemon, background=True, timeout=0))
        url = "git://127.0.0.1/remote.git"
        await self.sh(f"for i in $(seq 100); do git ls-remote {url} && exit 0; sleep 0.1; done; exit 1")
        await settle(self.git.remote_add(REPO, "origin", url))
        self.assertEqual(await settle(self.git.remote_get(REPO, "origin")), url)
        await settle(self.git.push(REPO, remote="origin", branch="main", set_upstream=True))
        await settle(self.git.clone(url, path="/home/user/clone", branch="main"))
        await self.commit("c.txt", "pushed\n", "second")
        await settle(self.git.push(REPO))
        await settle(self.git.pull("/home/user/clone"))
        self.assertEqual(await settle(self.sandbox.files.read("/home/user/clone/c.txt")), "pushed\n")
        await settle(self.git.create_branch(REPO, "lonely"))
        await self.raises(GitUpstreamException, lambda: self.git.pull(REPO))

    async def test_what_was_changed_is_unstaged_restored_and_reset(self):
        await settle(self.sandbox.files.write(f"{REPO}/a.txt", "two\n"))
        await settle(self.git.add(REPO))
        await settle(self.git.restore(REPO, paths=["a.txt"], staged=True))
        status = await settle(self.git.status(REPO))
        self.assertEqual([(one.name, one.staged) for one in status.file_status], [("a.txt", False)])
        await settle(self.git.restore(REPO, paths=["a.txt"]))
        self.assertEqual(await settle(self.sandbox.files.read(f"{REPO}/a.txt")), "one\n")
        await self.commit("a.txt", "two\n", "second")
        await settle(self.git.reset(REPO, mode="hard", target="HEAD~1"))
        self.assertEqual(await self.sh("git log --format=%s; cat a.txt"), "first\none\n")

    async def test_settings_and_credentials_are_kept(self):
        await settle(self.git.set_config("pull.rebase", "true", scope="local", path=REPO))
        self.assertEqual(await settle(self.git.get_config("pull.rebase", scope="local", path=REPO)), "true")
        self.assertIsNone(await settle(self.git.get_config("no.such", scope="local", path=REPO)))
        await settle(self.git.dangerously_authenticate("u", "p", host="git.example", protocol="https"))
        self.assertIn("https://u:p@git.example", await self.sh("cat ~/.git-credentials"))
