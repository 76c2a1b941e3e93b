//! `segue check --store`: compares files with the settings of the keyspaces that they name.
//!
//! Elsewhere: relations between files (`segue_config::compare`).

use segue_config::{KeyspaceSection, LocatedConfig, Problem};
use segue_coordination::store::{Store, StoreError};
use segue_protocol::keys::Keyspace;
use segue_protocol::planning::differences;
use segue_protocol::registration::{other_protocol, other_service};
use segue_protocol::txn::Keys;
use segue_protocol::view::View;

/// What differs between a file and its keyspaces.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Settings with which a role does not do its work.
    pub(super) problems: Vec<Problem>,
    /// Settings of the file that do not apply, or change the keyspace's.
    pub(super) warnings: Vec<Problem>,
}

impl Differences {
    /// Compares a file with its keyspaces in this store.
    pub(super) async fn of(file: &LocatedConfig, store: &dyn Store) -> Result<Self, StoreError> {
        let mut found = Differences::default();
        for section in &file.config.keyspaces {
            let keys = Keyspace::new(&file.config.store.prefix, &section.name).of_service(section.service.clone());
            let settings = store.snapshot(&Keys::One(keys.config())).await?;
            found.add(file, section, &View::from_snapshot(keys, settings));
        }
        Ok(found)
    }

    /// Adds what differs from the settings that the view shows. A keyspace without settings takes those of the files.
    fn add(&mut self, file: &LocatedConfig, section: &KeyspaceSection, view: &View) {
        let name = &section.name;
        if let Some(reason) = view.malformed.get(&view.keys().config()) {
            let fact = format!("the settings of keyspace {name} cannot be read: {reason}");
            self.problems.push(file.problem(
                "keyspace",
                fact,
                format!("expected readable settings at {}", view.keys().config()),
            ));
        }
        let Some(settings) = view.settings() else { return };
        if let Some(why) = other_protocol(view.keys(), settings) {
            let remedy = "expected a build of that version; segue config set protocol changes the keyspace's while nobody is \
                          registered";
            self.problems.push(file.problem("keyspace", why, remedy));
        }
        if let Some(why) = other_service(view.keys(), settings) {
            let remedy =
                "expected another keyspace, or the same service; segue config set service changes the keyspace's";
            self.problems.push(file.problem("service", why, remedy));
        }
        let own = section.routing.as_ref().map(|routing| routing.partition.partitioner());
        if let Some((own, standing)) = own.zip(settings.partitioner.as_ref()).filter(|(own, standing)| own != *standing)
        {
            let fact = format!(
                "it maps requests by {own}, and keyspace {name} by {standing}: the router would stay not ready"
            );
            let remedy = "correct it, or replace the keyspace's mapping with segue remap --to this file";
            self.problems.push(file.problem("router.partition", fact, remedy));
        }
        let Some(policy) = &section.policy else { return };
        let differences = differences(view, policy);
        for difference in &differences {
            let fact = format!("keyspace {name}: {difference}");
            self.warnings.push(file.problem("coordinator", fact, "segue config set changes the keyspace's"));
        }
        if policy.partitions > settings.partitions && settings.partitioner.as_ref().is_some_and(|it| !it.fixes_number())
        {
            let fact = format!(
                "keyspace {name} has {} partitions, and the next leader with this file raises that to {}",
                settings.partitions, policy.partitions
            );
            self.warnings.push(file.problem("coordinator.partitions", fact, "the number never decreases"));
        }
    }
}
