import asyncio
import datetime

from e2b import SandboxException, SandboxQuery, SandboxState

from support import both, now, settle


@both
class Listing:
    async def asyncSetUp(self):
        await super().asyncSetUp()
        self.metadata = {"mark": self.mark}
        self.ids = []
        for at in range(4):
            await asyncio.sleep(0.05)
            if at == 2:
                self.middle = now()
            sandbox = await self.created(metadata={"mark": self.mark, "turn": str(at), "odd": f"a b&c=é+{at % 2}"})
            self.ids.append(sandbox.sandbox_id)
        self.assertIs(await settle(self.client.pause(self.ids[1])), True)
        self.newest_first = self.ids[::-1]

    async def test_states_orders_and_pages(self):
        self.assertEqual(await self.listed(self.metadata), self.newest_first)
        self.assertEqual(await self.listed(self.metadata, order="asc"), self.ids)
        self.assertEqual(await self.listed(self.metadata, state=[SandboxState.PAUSED]), [self.ids[1]])
        running = [self.ids[3], self.ids[2], self.ids[0]]
        self.assertEqual(await self.listed(self.metadata, state=[SandboxState.RUNNING]), running)
        whole = [SandboxState.RUNNING, SandboxState.PAUSED]
        self.assertEqual(await self.listed(self.metadata, state=whole), self.newest_first)
        for order, expected in (("asc", self.ids), ("desc", self.newest_first)):
            self.assertEqual(await self.listed(self.metadata, order=order, limit=1), expected)
            self.assertEqual(await self.listed(self.metadata, order=order, limit=3), expected)

    async def test_a_listing_goes_on_from_a_token_and_ends_after_a_full_page(self):
        query = SandboxQuery(metadata=self.metadata)
        first = self.client.list(query, limit=3)
        self.assertEqual(len(await settle(first.next_items())), 3)
        self.assertIs(first.has_next, True)
        second = self.client.list(query, limit=3, next_token=first.next_token)
        rest = await settle(second.next_items())
        self.assertEqual([item.sandbox_id for item in rest], [self.ids[0]])
        self.assertEqual((second.has_next, second.next_token), (False, None))
        full = self.client.list(query, limit=4)
        self.assertEqual(len(await settle(full.next_items())), 4)
        self.assertIs(full.has_next, False)

    async def test_limits_and_tokens_that_make_no_sense_are_refused(self):
        for options in ({"limit": 101}, {"next_token": "junk"}):
            error = await self.raises(SandboxException, lambda: self.client.list(**options).next_items())
            self.assertEqual(error.status_code, 400, options)
        one = self.client.list(SandboxQuery(metadata=self.metadata), limit=1, order="asc")
        await settle(one.next_items())
        other = self.client.list(limit=1, order="desc", next_token=one.next_token)
        error = await self.raises(SandboxException, lambda: other.next_items())
        self.assertEqual(error.status_code, 400)

    async def test_filters(self):
        self.assertEqual(await self.listed({"mark": self.mark, "turn": "2"}), [self.ids[2]])
        self.assertEqual(await self.listed({"mark": self.mark, "turn": "9"}), [])
        odd = {"mark": self.mark, "odd": "a b&c=é+1"}
        self.assertEqual(await self.listed(odd), [self.ids[3], self.ids[1]])
        self.assertEqual(await self.listed(self.metadata, started_after=self.middle), [self.ids[3], self.ids[2]])
        later = now() + datetime.timedelta(minutes=1)
        self.assertEqual(await self.listed(self.metadata, started_after=later), [])
        self.assertEqual(await self.listed(self.metadata, template="base"), self.newest_first)
        self.assertEqual(await self.listed(self.metadata, template="no-such-template"), [])

    async def test_entries_carry_the_facts(self):
        items = await self.all(self.client.list())
        mine = {item.sandbox_id: item for item in items if item.sandbox_id in self.ids}
        self.assertEqual(set(mine), set(self.ids))
        states = [mine[sandbox_id].state for sandbox_id in self.ids]
        self.assertEqual(
            states, [SandboxState.RUNNING, SandboxState.PAUSED, SandboxState.RUNNING, SandboxState.RUNNING]
        )
        one = mine[self.ids[0]]
        self.assertEqual(one.metadata, {"mark": self.mark, "turn": "0", "odd": "a b&c=é+0"})
        self.assertTrue(one.end_at > one.started_at and one.cpu_count >= 1 and one.memory_mb > 0)
        self.assertEqual(one.name, "base")
