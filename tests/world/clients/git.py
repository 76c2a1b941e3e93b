"""git: clients clone, commit and push, two to a repository, each to a branch of its own. In the end each repository is
sound and each branch contains every commit whose push was acknowledged."""

import asyncio
import os
import re
import shutil
import signal
import time

from .service import Service

REPOSITORIES = 4
# What git prints when the connection broke, and the responses that say the same: of a router, and of a sidecar whose
# service was killed.
BROKEN = ("curl 18", "curl 52", "curl 55", "curl 56", "curl 92", "early EOF", "hung up unexpectedly")
BROKEN_STATUS = ("502", "500")
SMALL, LARGE = 2_000, 1_500_000
# A clone of a whole repository takes longer and longer, at last longer than a drain may take.
SHALLOW = ("--depth", "5", "--single-branch", "--branch")
# Git has no limit of its own.
LONGEST = 90


class Git(Service):
    name, program, prefix, key = "git", "git_http.py", "/git", {"path": "/git/{key}"}
    clients = 2 * REPOSITORIES
    # aiohttp closes the connection of a request that was severed, and lets its handler go on.
    has_drain_hook = True

    def __init__(self, *rest):
        super().__init__(*rest)
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": self.folder,
            "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
            "GIT_SSL_CAINFO": self.site.certificate,
            **{f"GIT_{role}_NAME": "world" for role in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{role}_EMAIL": "world@localhost" for role in ("AUTHOR", "COMMITTER")},
        }
        self.pushed = {}  # by repository and branch: the commits whose push was acknowledged
        self.clones = 0

    async def git(self, *command, cwd=None):
        process = await asyncio.create_subprocess_exec(
            "git", *command, cwd=cwd, env=self.environment, start_new_session=True,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), LONGEST)
            return process.returncode, output.decode(), errors.decode()
        except TimeoutError:
            return None, "", f"no end within {LONGEST} s"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)

    def path(self, repository):
        return os.path.join(self.folder, "git", repository)

    async def prepare(self):
        for number in range(REPOSITORIES):
            path = self.path(f"repository-{number}")
            await self.git("init", "--quiet", "--bare", path)
            # Git would collect garbage behind the response. Work that outlives a response needs the hook `drain`.
            for setting in ("http.receivepack=true", "receive.autogc=false", "gc.auto=0", "maintenance.auto=false"):
                await self.git("-C", path, "config", *setting.split("="))

    async def client(self, number):
        random, repository, branch = self.random_of(number), f"repository-{number % REPOSITORIES}", f"client-{number}"
        folder = os.path.join(self.folder, f"clone-{number}")
        # Half of the clients use HTTPS, and with it HTTP/2.
        url = f"{(self.site.url, self.site.tls_url)[number // REPOSITORIES % 2]}/git/{repository}"
        await self.git("init", "--quiet", folder)
        await self.git("-C", folder, "config", "gc.auto", "0")
        if url.startswith("https:"):
            # Larger pushes are sent in chunks. By HTTP/2 git with curl 7.88 then hangs now and then, also before nginx.
            await self.git("-C", folder, "config", "http.postBuffer", str(10 * LARGE))
        commits = self.pushed.setdefault((repository, branch), [])
        for round in range(1_000_000):
            if self.is_over():
                return
            size = LARGE if random.random() < 0.1 else SMALL
            with open(os.path.join(folder, f"file-{round % 20}"), "wb") as out:
                out.write(random.randbytes(size))
            await self.git("-C", folder, "add", ".")
            await self.git("-C", folder, "commit", "--quiet", "--message", f"{branch} {round}")
            _, commit, _ = await self.git("-C", folder, "rev-parse", "HEAD")
            if await self.over_http(repository, "-C", folder, "push", url, f"HEAD:refs/heads/{branch}"):
                commits.append(commit.strip())
            if commits and random.random() < 0.15:
                clone = f"{folder}-again"
                if await self.over_http(repository, "clone", "--quiet", "--bare", *SHALLOW, branch, url, clone):
                    self.clones += 1
                    await self.holds(repository, branch, clone, commits[-1:])
                await asyncio.to_thread(shutil.rmtree, clone, True)
            await asyncio.sleep(random.uniform(0.05, 0.5))

    async def over_http(self, repository, *command):
        """Runs a command that talks to the service. Returns whether it succeeded."""
        began = time.time()
        code, _, errors = await self.git(*command)
        if code == 0:
            self.succeeded(began)
            return True
        status = re.search(r"returned error: (\d+)", errors)
        is_broken = status[1] in BROKEN_STATUS if status else any(text in errors for text in BROKEN)
        self.failed(repository, began, f"git {command[-3:]}: {' / '.join(errors.split(chr(10))[-6:])}", is_broken)
        return False

    async def holds(self, repository, branch, path, commits):
        """Checks that a branch contains these commits."""
        for commit in commits:
            code, _, _ = await self.git("-C", path, "merge-base", "--is-ancestor", commit, f"refs/heads/{branch}")
            if code:
                self.harm.add(self.name, f"{repository}: {branch} lacks {commit}, whose push was acknowledged")

    async def check(self):
        for number in range(REPOSITORIES):
            repository = f"repository-{number}"
            code, output, errors = await self.git("-C", self.path(repository), "fsck", "--full", "--strict")
            if code:
                self.harm.add(self.name, f"{repository}: git fsck: {output} {errors}")
        for (repository, branch), commits in self.pushed.items():
            _, output, _ = await self.git("-C", self.path(repository), "log", "--format=%H", f"refs/heads/{branch}")
            for commit in set(commits) - set(output.split()):
                self.harm.add(self.name, f"{repository}: {branch} lacks {commit}, whose push was acknowledged")

    def summary(self):
        pushes = sum(map(len, self.pushed.values()))
        return f"{pushes} pushes and {self.clones} clones, in the end fsck and log of each repository"
