"""An authority with a certificate for an endpoint, and profiles of browsers that trust it, one of them with a certificate of its own."""

import json
import os
import stat
import subprocess

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


def self_signed(folder, days=2):
    """Makes a certificate for this host that its own key signs. Returns the paths of both."""
    cert, key = (os.path.join(folder, name) for name in ("cert.pem", "key.pem"))
    run("openssl", "req", "-x509", *KEY, "-days", str(days), "-subj", "/CN=localhost",
        "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", cert)
    return cert, key


def let_expire(cert, key):
    """Puts a certificate in the place of this one that is like it, and expired a day ago."""
    run("openssl", "x509", "-in", cert, "-signkey", key, "-days", "-1", "-out", f"{cert}.new")
    os.replace(f"{cert}.new", cert)


class Authority:
    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder)
        run("openssl", "req", "-x509", *KEY, "-days", "2", "-subj", "/CN=operators of the test", "-keyout", self.path("ca.key"),
            "-out", self.path("ca.pem"))
        self.issue("server", "subjectAltName=IP:127.0.0.1")
        self.issue("ann", "extendedKeyUsage=clientAuth")

    def path(self, name):
        return os.path.join(self.folder, name)

    def issue(self, name, extension):
        run("openssl", "req", "-x509", *KEY, "-days", "2", "-subj", f"/CN={name}", "-CA", self.path("ca.pem"), "-CAkey",
            self.path("ca.key"), "-addext", extension, "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.pem"))

    def tls(self):
        """Returns the setting `tls` of an endpoint with a certificate of this authority."""
        return {"cert": self.path("server.pem"), "key": self.path("server.key")}

    def home(self, name):
        """Makes the home of a user who trusts the authority, as docs/operating.md says. Returns its path."""
        home = self.path(f"home-{name}")
        store = os.path.join(home, ".pki/nssdb")
        os.makedirs(store)
        run("certutil", "-d", f"sql:{store}", "-N", "--empty-password")
        run("certutil", "-d", f"sql:{store}", "-A", "-n", "segue", "-t", "C,,", "-i", self.path("ca.pem"))
        return home

    def home_with_certificate(self, name):
        home, bundle = self.home(name), self.path(f"{name}.p12")
        run("openssl", "pkcs12", "-export", "-in", self.path(f"{name}.pem"), "-inkey", self.path(f"{name}.key"), "-passout", "pass:",
            "-out", bundle)
        run("pk12util", "-d", f"sql:{os.path.join(home, '.pki/nssdb')}", "-i", bundle, "-W", "")
        return home

    def chromium(self, url):
        """Returns a program that starts Chromium with a policy: it presents its certificate to `url` without asking.

        Chromium reads policies from a folder of the machine. The program sees another one in its place.
        """
        policies = self.path("etc-chromium/policies/managed")
        os.makedirs(policies)
        with open(os.path.join(policies, "certificate.json"), "w", encoding="utf-8") as out:
            json.dump({"AutoSelectCertificateForUrls": [json.dumps({"pattern": url, "filter": {}})]}, out)
        program = self.path("chromium")
        unshare = "unshare --mount" if os.geteuid() == 0 else "unshare --mount --map-root-user"
        with open(program, "w", encoding="utf-8") as out:
            out.write("#!/bin/sh\n"
                      f"mount='mount --bind {self.path('etc-chromium')} /etc/chromium'\n"
                      f"exec {unshare} sh -c \"$mount\"' && exec /usr/bin/chromium \"$@\"' chromium \"$@\"\n")
        os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
        return program
