"""CalDAV: clients put events into their calendars and change them on condition of their ETags, and the package `caldav`
lists them. In the end each event is there as its last acknowledged change has left it."""

import asyncio
import re
import ssl
import time

import aiohttp
import caldav

from harm import ANY, says_broken

from .service import Service

EVENT = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//segue//world//EN
BEGIN:VEVENT
UID:{uid}
SEQUENCE:{sequence}
DTSTAMP:20260101T000000Z
DTSTART:20260101T{hour:02}0000Z
DURATION:PT1H
SUMMARY:change {sequence} of {uid}
END:VEVENT
END:VCALENDAR
""".replace("\n", "\r\n")


class Radicale(Service):
    name, program, prefix, key = "radicale", "radicale_dav.py", "/dav", {"path": "/dav/{key}"}
    # Clients find their calendars at `/dav/`.
    without_key = "any"
    clients = 6

    def __init__(self, *rest):
        super().__init__(*rest)
        self.events = {}  # by user and event: the changes of which one has to be there, and the ETag of the last

    def calendar(self, user):
        """Returns the calendar that the package `caldav` finds for the user."""
        client = caldav.DAVClient(url=f"{self.site.url}/dav/", username=user, password="any", timeout=60)
        (calendar,) = client.principal().calendars()
        return calendar

    async def client(self, number):
        random, user = self.random_of(number), f"user-{number}"
        url = f"{(self.site.url, self.site.tls_url)[number % 2]}/dav/{user}/calendar/"
        context = ssl.create_default_context(cafile=self.site.certificate)
        connector, limit = aiohttp.TCPConnector(ssl=context), aiohttp.ClientTimeout(total=60)
        auth = aiohttp.BasicAuth(user, "any")
        async with aiohttp.ClientSession(connector=connector, auth=auth, timeout=limit) as session:
            while not await self.send(session, user, "MKCALENDAR", url):
                await asyncio.sleep(0.2)
            events = self.events.setdefault(user, {})
            for count in range(1_000_000):
                if self.is_over():
                    return
                certain = [uid for uid, (sequences, _) in events.items() if len(sequences) == 1]
                if certain and random.random() < 0.4:
                    await self.change(session, user, url, random.choice(certain))
                else:
                    uid = f"{user}-{count}"
                    body = EVENT.format(uid=uid, sequence=0, hour=count % 24)
                    answer = await self.send(session, user, "PUT", f"{url}{uid}.ics", body, {"If-None-Match": "*"})
                    # None: it may be there or not.
                    events[uid] = ({0}, answer["ETag"]) if answer else ({None, 0}, None)
                if random.random() < 0.05:
                    await self.list(user)
                await asyncio.sleep(random.uniform(0.02, 0.15))

    async def change(self, session, user, url, uid):
        (sequence,), etag = self.events[user][uid]
        body = EVENT.format(uid=uid, sequence=sequence + 1, hour=0)
        answer = await self.send(session, user, "PUT", f"{url}{uid}.ics", body, {"If-Match": etag})
        self.events[user][uid] = ({sequence + 1}, answer["ETag"]) if answer else ({sequence, sequence + 1}, None)

    async def send(self, session, user, method, url, body=None, headers=None):
        """Returns the headers of a response that says success, or None."""
        began = time.time()
        try:
            async with session.request(method, url, data=body, headers=headers) as response:
                text = await response.text()
                if response.status < 300:
                    self.succeeded(began)
                    return response.headers
                what, is_broken = f"{response.status} {text[:200]}", says_broken(response.status, text)
        except TimeoutError:
            what, is_broken = "no response within 60 s", False
        except aiohttp.ClientError as error:
            what, is_broken = repr(error), True
        self.failed(user, began, f"{method} {url}: {what}", is_broken)
        return None

    @staticmethod
    def is_broken(error):
        return any(text in repr(error) for text in ("502", "lease-lost", "onnection"))

    async def list(self, user):
        """Compares the calendar with what was acknowledged. Nobody changes it meanwhile."""
        began = time.time()
        try:
            calendar = await asyncio.to_thread(self.calendar, user)
        except Exception as error:
            # It was for no user, so any pod that was killed may have had it.
            self.failed(ANY, began, f"PROPFIND: {error!r}", self.is_broken(error))
            return
        try:
            found = await asyncio.to_thread(calendar.events)
        except Exception as error:  # those of the package and of its own HTTP client
            self.failed(user, began, f"REPORT: {error!r}", self.is_broken(error))
            return
        self.succeeded(began)
        texts = [event.data for event in found]
        sequences = {re.search(r"UID:(\S+)", text)[1]: int(re.search(r"SEQUENCE:(\d+)", text)[1]) for text in texts}
        if len(texts) != len(sequences):
            self.harm.add(self.name, f"{user}: {len(texts)} events with {len(sequences)} names")
        for uid, (expected, _) in self.events[user].items():
            if sequences.get(uid) not in expected:
                self.harm.add(self.name, f"{uid} is at change {sequences.get(uid)}, expected {expected}")

    async def check(self):
        for user in self.events:
            await self.list(user)

    def summary(self):
        return f"{sum(map(len, self.events.values()))} events, in the end listed by `caldav`"
