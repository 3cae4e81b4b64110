//! `kindred edit` opens objects in the user's editor. A refused change is shown there again, with the reasons on
//! top.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{
    args::{EditArgs, Resource},
    client::{Client, Form, escaped},
    document::Document,
    failure::Failure,
    output, verbs,
};

const HEAD: &str = "\
# Change the objects below and close the editor; lines that begin with # are ignored.
# An empty file, or one without a change, ends this without one.
";

pub async fn edit(client: &Client, args: &EditArgs) -> Result<(), Failure> {
    if matches!(args.resource, Resource::Moves | Resource::Partitions) {
        return Err(Failure::Usage(format!(
            "{} are not edited: edit datapartitionconfigs or servicegroups",
            args.resource.plural()
        )));
    }
    let mut path = format!("/api/v1/{}", args.resource.plural());
    if let Some(name) = &args.name {
        path = format!("{path}/{}", escaped(name));
    }
    let before = yaml(&client.get(&path, Form::Objects).await?)?;
    let editor = ["KINDRED_EDITOR", "VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
        .unwrap_or_else(|| "vi".to_owned());
    let file = tempfile::Builder::new()
        .prefix("kindred-edit-")
        .suffix(".yaml")
        .tempfile()
        .map_err(|error| Failure::Refused(format!("a temporary file: {error}")))?;
    let path = file.into_temp_path();
    let mut body = before.clone();
    let mut errors: Option<String> = None;
    loop {
        write(&path, &with_errors(errors.as_deref(), &body))?;
        open(&editor, &path)?;
        let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
        let edited = stripped(&text);
        let asked = match decide(&before, &body, &edited, errors.is_some()) {
            Decision::Nothing => return output::print("nothing was changed\n"),
            Decision::GaveUp => {
                let kept = path.keep().map_err(|error| Failure::Refused(error.to_string()))?;
                return Err(Failure::Refused(format!(
                    "{}\nnothing was changed; the text is kept in {}",
                    errors.unwrap_or_default(),
                    kept.display()
                )));
            }
            Decision::Ask => Document::parse(&edited),
        };
        let refused = match asked {
            Err(wrong) => wrong,
            Ok(document) => match verbs::change(client, "/api/v1/apply", &document.body(), &args.run).await {
                Err(Failure::Refused(why)) => why,
                other => return other,
            },
        };
        body = edited;
        errors = Some(refused);
    }
}

/// The reaction to the text that the editor returns.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// The text is unchanged or empty.
    Nothing,
    /// The refused text came back unchanged, so the user gave up.
    GaveUp,
    Ask,
}

fn decide(before: &str, shown: &str, edited: &str, refused: bool) -> Decision {
    if edited.trim().is_empty() || edited.trim() == before.trim() {
        Decision::Nothing
    } else if refused && edited.trim() == shown.trim() {
        Decision::GaveUp
    } else {
        Decision::Ask
    }
}

/// One object, or several documents.
fn yaml(value: &Value) -> Result<String, Failure> {
    let items = match value["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![value.clone()],
    };
    let documents: Result<Vec<_>, _> =
        items.iter().map(|item| output::rendered(item, super::args::Output::Yaml)).collect();
    Ok(documents?.join("---\n"))
}

fn with_errors(errors: Option<&str>, body: &str) -> String {
    let said = errors.map(|errors| {
        let lines = errors.lines().map(|line| format!("# {line}\n"));
        format!("#\n# It was refused, nothing was changed:\n{}#\n", lines.collect::<String>())
    });
    format!("{HEAD}{}{body}", said.unwrap_or_default())
}

fn stripped(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Refused(format!("{}: {error}", path.display()))
}

/// Runs the editor through a shell, because it may be a command with arguments.
fn open(editor: &str, path: &Path) -> Result<(), Failure> {
    let status = Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            Err(Failure::Refused(format!("the editor {editor:?} ended with {status}; nothing was changed")))
        }
        Err(error) => Err(Failure::Refused(format!("the editor {editor:?} cannot be started: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_on_top_and_go_again() {
        let text = with_errors(Some("a.b: wrong\nc: worse"), "kind: X\n");
        assert!(text.contains("# a.b: wrong\n# c: worse\n#\nkind: X\n"), "{text}");
        assert_eq!(stripped(&text), "kind: X\n");
    }

    #[test]
    fn a_text_without_a_change_is_not_sent() {
        assert_eq!(decide("a: 1\n", "a: 1\n", "a: 1\n", false), Decision::Nothing);
        assert_eq!(decide("a: 1\n", "a: 2\n", "", true), Decision::Nothing);
        assert_eq!(decide("a: 1\n", "a: 2\n", "a: 1\n", true), Decision::Nothing);
        assert_eq!(decide("a: 1\n", "a: 2\n", "a: 2\n", true), Decision::GaveUp);
        assert_eq!(decide("a: 1\n", "a: 2\n", "a: 3\n", true), Decision::Ask);
        assert_eq!(decide("a: 1\n", "a: 1\n", "a: 2\n", false), Decision::Ask);
    }
}
