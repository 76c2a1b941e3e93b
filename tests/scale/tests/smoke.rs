//! The program itself, with a keyspace that takes seconds.

use std::process::Command;

#[test]
fn a_small_keyspace_is_measured_to_its_end() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_segue-scale"));
    let output = program.args(["--pods", "3", "--routers", "1", "--partitions", "60", "--patience", "60"]).output();
    let output = output.expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let last = text.lines().last().unwrap_or_default();
    assert!(last.starts_with("scale: pods=3 routers=1 partitions=60 start_s="), "{last}");
    // The first placement moves 60, the join a quarter of them, and the death as many.
    let moves = |line: &str| line[31..].split_whitespace().next().and_then(|moves| moves.parse::<u64>().ok());
    let counted: Vec<_> = text.lines().skip(1).take(3).map(moves).collect();
    assert_eq!(counted, [Some(60), Some(15), Some(15)], "{text}");
}
