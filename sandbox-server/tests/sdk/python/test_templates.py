"""Templates, by both clients of the SDK."""

import json
import os
import secrets
import tempfile

from e2b import (
    AsyncSandbox,
    AsyncTemplate,
    BuildException,
    Template,
    wait_for_file,
    wait_for_port,
    wait_for_process,
    wait_for_timeout,
    wait_for_url,
)

from support import API, asked, both, settle


@both
class Templates:
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.template = AsyncTemplate if self.client is AsyncSandbox else Template
        self.templates = []

    async def asyncTearDown(self):
        await super().asyncTearDown()
        for template_id in self.templates:
            headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
            asked(f"{API}/templates/{template_id}", method="DELETE", **headers)

    async def built(self, template, name=None, **options):
        """Builds a template that is deleted after the test; returns what was built, its name and its log."""
        name = name or f"{self.mark}-{secrets.token_hex(4)}"
        log = []
        info = await settle(self.template.build(template, name, on_build_logs=log.append, **options))
        self.templates.append(info.template_id)
        return info, name, [entry.message for entry in log]

    async def test_steps_make_what_sandboxes_start_with(self):
        with tempfile.TemporaryDirectory() as context:
            os.mkdir(os.path.join(context, "folder"))
            with open(os.path.join(context, "folder", "test.txt"), "w") as file:
                file.write("This is a test file.")
            template = (
                self.template(file_context_path=context)
                .from_image("ubuntu:22.04")
                .copy("folder/*.txt", "folder", force_upload=True)
                .set_envs({"ENV_1": "value1", "ENV_2": "value2"})
                .run_cmd("cat folder/test.txt")
                .set_workdir("/app")
            )
            _, name, log = await self.built(template, cpu_count=1, memory_mb=1024)
        self.assertTrue(any("[stdout]: This is a test file." in line for line in log), log)
        sandbox = await self.created(name)
        out = await self.stdout(sandbox, 'pwd; echo "$ENV_1 $ENV_2"; cat /home/user/folder/test.txt')
        self.assertEqual(out, "/app\nvalue1 value2\nThis is a test file.")

    async def test_links_are_copied_as_links_unless_they_are_to_be_resolved(self):
        with tempfile.TemporaryDirectory() as context:
            with open(os.path.join(context, "test.txt"), "w") as file:
                file.write("linked")
            os.symlink("test.txt", os.path.join(context, "link.txt"))
            template = self.template(file_context_path=context).from_base_image().copy("*.txt", "kept/")
            template = template.copy("link.txt", "resolved/link.txt", resolve_symlinks=True)
            _, name, _ = await self.built(template)
        sandbox = await self.created(name)
        out = await self.stdout(sandbox, "stat -c %F kept/link.txt resolved/link.txt; cat kept/link.txt resolved/link.txt")
        self.assertEqual(out, "symbolic link\nregular file\nlinkedlinked")

    async def test_a_template_in_use_is_not_deleted(self):
        info, name, _ = await self.built(self.template().from_base_image().run_cmd("touch made"))
        sandbox = await self.created(name)
        url, headers = f"{API}/templates/{info.template_id}", {"X-API-KEY": os.environ["E2B_API_KEY"]}
        status, body = asked(url, method="DELETE", **headers)
        self.assertEqual((status, json.loads(body)["code"]), (400, 400))
        await settle(sandbox.kill())
        self.assertEqual(asked(url, method="DELETE", **headers), (204, b""))
        self.assertFalse(await settle(self.template.exists(name)))

    async def test_an_unchanged_beginning_is_not_built_again(self):
        def template():
            return self.template().from_base_image().run_cmd(f"echo {self.mark} > one.txt")

        _, _, first = await self.built(template())
        _, _, again = await self.built(template())
        self.assertEqual(len([line for line in first if line.startswith("CACHED")]), 0)
        self.assertEqual(len([line for line in again if line.startswith("CACHED")]), 1)
        _, _, skipped = await self.built(template(), skip_cache=True)
        self.assertEqual(len([line for line in skipped if line.startswith("CACHED")]), 0)

    async def test_a_step_that_fails_says_why(self):
        template = self.template().from_base_image().skip_cache().run_cmd("whoami", user="root123")
        with self.assertRaisesRegex(BuildException, "unauthenticated: invalid username: 'root123'"):
            await self.built(template)
        with self.assertRaisesRegex(BuildException, "--image-alias"):
            await self.built(self.template().from_image("example.test/none:1"))

    async def test_a_start_command_runs_in_each_sandbox_and_is_waited_for_in_every_way(self):
        serving = "cd /tmp && exec python3 -m http.server 8125"
        ways = [
            wait_for_port(8125),
            wait_for_url("http://127.0.0.1:8125/"),
            wait_for_process("python3"),
            wait_for_timeout(100),
        ]
        for ready in ways:
            _, name, _ = await self.built(self.template().from_base_image().set_start_cmd(serving, ready))
            sandbox = await self.created(name)
            self.assertRegex(await self.stdout(sandbox, "pgrep -f http.server"), r"^\d+\n")
        template = self.template().from_base_image().run_cmd("touch /tmp/done")
        _, name, _ = await self.built(template.set_ready_cmd(wait_for_file("/tmp/done")))
        self.assertTrue(await settle((await self.created(name)).files.exists("/tmp/done")))

    async def test_a_template_is_made_from_a_dockerfile_and_from_another(self):
        with tempfile.TemporaryDirectory() as context:
            with open(os.path.join(context, "a.txt"), "w") as file:
                file.write("copied")
            lines = ["FROM ubuntu:22.04", "ENV PLACE=here", "WORKDIR /work", "COPY a.txt b.txt"]
            lines += ['RUN echo "$PLACE" > made.txt', "USER user", ""]
            template = self.template(file_context_path=context).from_dockerfile("\n".join(lines))
            _, parent, _ = await self.built(template)
            child = self.template(file_context_path=context).from_template(parent)
            child = child.copy_items([{"src": "a.txt", "dest": "/home/user/c.txt", "mode": 0o600}])
            child = child.make_symlink("/work/made.txt", "/home/user/link").set_user("user")
            _, name, _ = await self.built(child)
        sandbox = await self.created(name)
        out = await self.stdout(sandbox, "pwd; whoami; cat b.txt ~/link; stat -c %a ~/c.txt")
        self.assertEqual(out, "/work\nuser\ncopiedhere\n600\n")
        self.assertIn("WORKDIR /work", self.template.to_dockerfile(template).splitlines())
        plain = self.template().from_image("ubuntu:22.04").pip_install("six").apt_install("vim")
        sent = json.loads(self.template.to_json(plain))
        self.assertEqual((sent["fromImage"], [step["type"] for step in sent["steps"]]), ("ubuntu:22.04", ["RUN"] * 2))

    async def test_templates_exist_by_name_and_have_tags(self):
        self.assertTrue(await settle(self.template.exists("base")))
        self.assertTrue(await settle(self.template.alias_exists("base")))
        self.assertFalse(await settle(self.template.exists(f"{self.mark}-none")))
        info, name, _ = await self.built(self.template().from_base_image(), f"{self.mark}-tags:v1")
        assigned = await settle(self.template.assign_tags(name, ["production", "stable"]))
        self.assertEqual((assigned.build_id, assigned.tags), (info.build_id, ["production", "stable"]))
        tags = await settle(self.template.get_tags(info.template_id))
        self.assertEqual(sorted(tag.tag for tag in tags), ["production", "stable", "v1"])
        await settle(self.template.remove_tags(f"{self.mark}-tags", "stable"))
        tags = await settle(self.template.get_tags(info.template_id))
        self.assertEqual(sorted(tag.tag for tag in tags), ["production", "v1"])

    async def test_a_build_goes_on_in_the_background(self):
        template = self.template().from_image("ubuntu:22.04").skip_cache().run_cmd("sleep 1")
        info = await settle(self.template.build_in_background(template, f"{self.mark}-background"))
        self.templates.append(info.template_id)

        async def is_ready():
            status = await settle(self.template.get_build_status(info))
            self.assertIn(status.status.value, ("building", "ready"))
            return status.status.value == "ready"

        await self.eventually("it is ready", is_ready)
