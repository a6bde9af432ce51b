//! `docs/scsi.md` has the commands that there are.

use device::scsi::opcodes::OPERATIONS;

#[test]
fn the_document_lists_every_command() {
    let text = include_str!("../../../../../docs/scsi.md");
    let listed: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("| code |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let rows = OPERATIONS.iter().map(|row| {
        let action = row.action.map(|action| format!("/{action:02x}")).unwrap_or_default();
        format!("| `{:02x}{action}` | {} | {} |", row.code, row.name, row.standard)
    });
    let expected: Vec<String> = rows.collect();
    assert_eq!(listed, expected, "put into docs/scsi.md:\n{}", expected.join("\n"));
}
