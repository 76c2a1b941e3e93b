//! What an administrator does to an etcd, by its gateway for JSON: users, compaction, the alarm of a full disk.
//!
//! Everything but [`enable_users`] is done as the user `root`, whom that adds.

use std::net::SocketAddr;

use serde_json::Value;

use crate::http::Request;

/// The user of Segue's processes.
pub const USER: &str = "segue";

const ROOT: &str = "root";
const ROOT_PASSWORD: &str = "root's";

/// Compacts the history up to `revision`, as `etcdctl compaction` does.
///
/// # Errors
/// In etcd's own words, as with all of these.
pub fn compact(etcd: SocketAddr, revision: u64) -> Result<(), String> {
    as_root(etcd, "kv/compaction", &format!(r#"{{"revision":"{revision}","physical":true}}"#))
}

/// Adds the users and demands their passwords from now on. [`USER`] may use Segue's keys alone.
pub fn enable_users(etcd: SocketAddr, password: &str) -> Result<(), String> {
    // "/segue/" and what follows it, in base64.
    let keys = r#"{"permType":"READWRITE","key":"L3NlZ3VlLw==","range_end":"L3NlZ3VlMA=="}"#;
    let steps = [
        ("auth/user/add", format!(r#"{{"name":"{ROOT}","password":"{ROOT_PASSWORD}"}}"#)),
        ("auth/role/add", format!(r#"{{"name":"{ROOT}"}}"#)),
        ("auth/user/grant", format!(r#"{{"user":"{ROOT}","role":"{ROOT}"}}"#)),
        ("auth/user/add", format!(r#"{{"name":"{USER}","password":"{password}"}}"#)),
        ("auth/role/add", format!(r#"{{"name":"{USER}"}}"#)),
        ("auth/role/grant", format!(r#"{{"name":"{USER}","perm":{keys}}}"#)),
        ("auth/user/grant", format!(r#"{{"user":"{USER}","role":"{USER}"}}"#)),
        ("auth/enable", "{}".to_owned()),
    ];
    steps.iter().try_for_each(|(path, body)| call(etcd, path, body, None).map(drop))
}

/// Adds a user who may read Segue's keys, and of the keyspace `default` write the registrations of pods alone.
pub fn add_registrant(etcd: SocketAddr, user: &str, password: &str) -> Result<(), String> {
    // "/segue/" and "/segue/default/pods/", each with what follows it, in base64.
    let read = r#"{"permType":"READ","key":"L3NlZ3VlLw==","range_end":"L3NlZ3VlMA=="}"#;
    let pods =
        r#"{"permType":"READWRITE","key":"L3NlZ3VlL2RlZmF1bHQvcG9kcy8=","range_end":"L3NlZ3VlL2RlZmF1bHQvcG9kczA="}"#;
    let steps = [
        ("auth/user/add", format!(r#"{{"name":"{user}","password":"{password}"}}"#)),
        ("auth/role/add", format!(r#"{{"name":"{user}"}}"#)),
        ("auth/role/grant", format!(r#"{{"name":"{user}","perm":{read}}}"#)),
        ("auth/role/grant", format!(r#"{{"name":"{user}","perm":{pods}}}"#)),
        ("auth/user/grant", format!(r#"{{"user":"{user}","role":"{user}"}}"#)),
    ];
    steps.iter().try_for_each(|(path, body)| as_root(etcd, path, body))
}

/// Replaces the password of [`USER`]. The tokens that it has are void then.
pub fn replace_password(etcd: SocketAddr, password: &str) -> Result<(), String> {
    as_root(etcd, "auth/user/changepw", &format!(r#"{{"name":"{USER}","password":"{password}"}}"#))
}

/// Has etcd refuse every write, as it does by itself when its database is full, or accept them again.
pub fn refuse_writes(etcd: SocketAddr, refuse: bool) -> Result<(), String> {
    let action = if refuse { "ACTIVATE" } else { "DEACTIVATE" };
    as_root(etcd, "maintenance/alarm", &format!(r#"{{"action":"{action}","memberID":"0","alarm":"NOSPACE"}}"#))
}

fn as_root(etcd: SocketAddr, path: &str, body: &str) -> Result<(), String> {
    let who = format!(r#"{{"name":"{ROOT}","password":"{ROOT_PASSWORD}"}}"#);
    let answer: Value = call(etcd, "auth/authenticate", &who, None)?.parse().map_err(|error| format!("{error}"))?;
    let token = answer["token"].as_str().ok_or("etcd gives no token")?;
    call(etcd, path, body, Some(token)).map(drop)
}

/// Calls etcd's gateway for JSON. Returns the body.
fn call(etcd: SocketAddr, path: &str, body: &str, token: Option<&str>) -> Result<String, String> {
    let request = Request::post(&format!("/v3/{path}"), body);
    let request = match token {
        Some(token) => request.header("authorization", token),
        None => request,
    };
    let response = request.send(etcd).ok_or("etcd does not answer")?;
    match response.status {
        200 => Ok(response.body),
        _ => Err(format!("etcd refuses {path}: {}", response.body.trim())),
    }
}
