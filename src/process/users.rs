//! Users of the machine: who they are, and how this process becomes one.
//!
//! # Invariants
//!
//! * A process that has become a user has that user's groups and no others, and cannot go back.

use std::fmt;
use std::io;
use std::path::PathBuf;

use nix::unistd::{Gid, Uid, User, getegid, geteuid, getgrouplist, setgid, setgroups, setuid};
use rustix::thread::{CapabilitySet, capabilities};
use segue_config::ExecUser;

/// A user, as the machine knows them.
#[derive(Debug)]
pub(crate) struct Account {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
    /// The name and the home. `None` for a number that no name belongs to.
    pub(crate) named: Option<(String, PathBuf)>,
}

/// Why a user is not known.
#[derive(Debug)]
pub(crate) enum UnknownUser {
    /// No account has this name.
    Name(String),
    /// No account has this number, so its group is not known.
    Group(u32),
    /// The accounts cannot be read.
    Lookup(io::Error),
}

impl fmt::Display for UnknownUser {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnknownUser::Name(name) => write!(out, "there is no user {name} here"),
            UnknownUser::Group(uid) => write!(out, "there is no user {uid} here, so its group is not known"),
            UnknownUser::Lookup(error) => write!(out, "users cannot be looked up: {error}"),
        }
    }
}

impl From<nix::Error> for UnknownUser {
    fn from(error: nix::Error) -> Self {
        UnknownUser::Lookup(error.into())
    }
}

impl Account {
    /// Looks a user up.
    pub(crate) fn of(user: &ExecUser) -> Result<Self, UnknownUser> {
        let (found, uid, gid) = match user {
            ExecUser::Name(name) => {
                let found = User::from_name(name)?.ok_or_else(|| UnknownUser::Name(name.clone()))?;
                let (uid, gid) = (found.uid, found.gid);
                (Some(found), uid, gid)
            }
            ExecUser::Id { uid, gid } => {
                let found = User::from_uid(Uid::from_raw(*uid))?;
                let own = found.as_ref().map(|found| found.gid);
                let gid = gid.map(Gid::from_raw).or(own).ok_or(UnknownUser::Group(*uid))?;
                (found, Uid::from_raw(*uid), gid)
            }
        };
        let groups = match &found {
            Some(found) => {
                let name = std::ffi::CString::new(found.name.as_str());
                getgrouplist(&name.map_err(|_| nix::Error::EINVAL)?, gid)?
            }
            None => vec![gid],
        };
        Ok(Account { uid, gid, groups, named: found.map(|found| (found.name, found.dir)) })
    }

    /// Returns whether this process is that user's already.
    pub(crate) fn is_own(&self) -> bool {
        (geteuid(), getegid()) == (self.uid, self.gid) && !geteuid().is_root()
    }

    /// Returns whether this process may become that user, and end another process that has.
    pub(crate) fn may_be_assumed(&self) -> bool {
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::KILL;
        self.is_own() || capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
    }

    /// Makes this process one of that user. It has to have one thread.
    pub(crate) fn assume(&self) -> io::Result<()> {
        if self.is_own() {
            return Ok(());
        }
        if !self.may_be_assumed() {
            // Its supervisor, which has the same rights, could not end it.
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        setgroups(&self.groups)?;
        setgid(self.gid)?;
        setuid(self.uid)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(user: &str) -> Result<Account, UnknownUser> {
        Account::of(&user.parse().unwrap())
    }

    #[test]
    fn a_user_is_found_by_name_and_by_number_and_has_groups() {
        let (named, numbered) = (account("root").unwrap(), account("0").unwrap());
        assert_eq!((named.uid, named.gid), (Uid::from_raw(0), Gid::from_raw(0)));
        assert_eq!(numbered.named.as_ref().unwrap().0, "root");
        assert!(named.groups.contains(&Gid::from_raw(0)));
        let other = account("0:12345").unwrap();
        assert_eq!(other.gid, Gid::from_raw(12345));
        assert!(other.groups.contains(&Gid::from_raw(12345)));
    }

    #[test]
    fn an_unknown_number_needs_a_group_and_an_unknown_name_is_nobody() {
        assert_eq!(account("segue-nobody").unwrap_err().to_string(), "there is no user segue-nobody here");
        let without_group = account("4294900000").unwrap_err().to_string();
        assert_eq!(without_group, "there is no user 4294900000 here, so its group is not known");
        let numbers = account("4294900000:7").unwrap();
        assert_eq!((numbers.groups, numbers.named), (vec![Gid::from_raw(7)], None));
    }

    #[test]
    fn a_process_is_its_own_users() {
        let own = account(&format!("{}:{}", geteuid(), getegid())).unwrap();
        assert_eq!(own.is_own(), !geteuid().is_root());
    }
}
