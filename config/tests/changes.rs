//! Settings that differ between two versions of a file.
use segue_config::{WrittenValues, locate};

fn written(text: &str, variables: &[(&str, &str)]) -> WrittenValues {
    let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    locate("segue.toml", text, env, "host-1").unwrap().written().clone()
}

#[test]
fn changed_added_and_removed_keys_are_named_and_equal_ones_are_not() {
    let before = "[coordinator]\npartitions = 8\nsettle = \"1s\"\n[log]\nlevel = \"info\"\n";
    let after = "# Another order.\n[log]\nlevel = \"debug\"\n[coordinator]\nsettle_max = \"6s\"\npartitions = 8\n";
    let (before, after) = (written(before, &[]), written(after, &[]));
    assert_eq!(before.differing(&after), ["coordinator.settle", "coordinator.settle_max", "log.level"]);
    assert_eq!(before.differing(&before), [""; 0]);
}

#[test]
fn a_variable_hides_a_change_of_the_file() {
    let [before, after] = [8, 9].map(|partitions| {
        let text = format!("[coordinator]\npartitions = {partitions}\n");
        written(&text, &[("SEGUE__COORDINATOR__PARTITIONS", "7")])
    });
    assert_eq!(before.differing(&after), [""; 0]);
}

#[test]
fn a_change_in_a_list_of_keyspaces_is_named_with_its_place() {
    let table = |name: &str, partitions: &str| format!("[[keyspaces]]\nname = \"{name}\"\npartitions = {partitions}\n");
    let text = |partitions: &str| format!("[coordinator]\n{}{}", table("a", "4"), table("b", partitions));
    let (before, after) = (written(&text("4"), &[]), written(&text("8"), &[]));
    assert_eq!(before.differing(&after), ["keyspaces.1.partitions"]);
}
