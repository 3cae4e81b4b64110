//! A small parser of `.proto` files. It reads just enough to list messages, enums, fields and methods.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};

#[derive(Debug, Default)]
pub struct Declarations {
    /// The fields or values of each message or enum, one a line. The key is a path such as `RangeRequest.SortOrder`.
    pub blocks: BTreeMap<String, BTreeSet<String>>,
    /// The types of each method. The key is `Service.Method`.
    pub methods: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq)]
enum Scope {
    Block(String),
    Oneof(String),
    Service(String),
    Method,
    Other,
}

/// Adds the declarations of a file.
pub fn parse(text: &str, all: &mut Declarations) -> anyhow::Result<()> {
    let mut scopes: Vec<Scope> = Vec::new();
    let mut statement: Vec<String> = Vec::new();
    for token in tokens(text) {
        match token.as_str() {
            "{" => {
                scopes.push(open(&statement, &scopes, all));
                statement.clear();
            }
            "}" => {
                scopes.pop().context("an unexpected }")?;
                statement.clear();
            }
            ";" => {
                end(&statement, &scopes, all)?;
                statement.clear();
            }
            _ => statement.push(token),
        }
    }
    if scopes.is_empty() { Ok(()) } else { bail!("a missing }}") }
}

fn path(scopes: &[Scope]) -> String {
    let names = scopes.iter().filter_map(|scope| match scope {
        Scope::Block(name) => Some(name.as_str()),
        _ => None,
    });
    names.collect::<Vec<_>>().join(".")
}

fn open(statement: &[String], scopes: &[Scope], all: &mut Declarations) -> Scope {
    let name = statement.get(1).cloned().unwrap_or_default();
    match statement.first().map(String::as_str) {
        Some("message" | "enum") => {
            let mut inner = scopes.to_vec();
            inner.push(Scope::Block(name.clone()));
            all.blocks.entry(path(&inner)).or_default();
            Scope::Block(name)
        }
        Some("oneof") => Scope::Oneof(name),
        Some("service") => Scope::Service(name),
        Some("rpc") => {
            method(statement, scopes, all);
            Scope::Method
        }
        _ => Scope::Other,
    }
}

fn method(statement: &[String], scopes: &[Scope], all: &mut Declarations) {
    if let (Some(Scope::Service(service)), Some(name)) = (scopes.last(), statement.get(1)) {
        all.methods.insert(format!("{service}.{name}"), statement[2..].join(" "));
    }
}

/// Ends a statement without a block: a field, an enum value or a method.
fn end(statement: &[String], scopes: &[Scope], all: &mut Declarations) -> anyhow::Result<()> {
    let first = statement.first().map(String::as_str);
    let in_block = matches!(scopes.last(), Some(Scope::Block(_) | Scope::Oneof(_)));
    if first == Some("rpc") {
        method(statement, scopes, all);
    } else if in_block && !matches!(first, None | Some("option" | "reserved" | "extensions")) {
        // Options follow in brackets. They change nothing on the wire.
        let wire: Vec<&str> =
            statement.iter().map(String::as_str).take_while(|token| !token.starts_with('[')).collect();
        let mut line = wire.join(" ").replace("mvccpb . ", "mvccpb.");
        if let Some(Scope::Oneof(name)) = scopes.last() {
            line = format!("oneof {name}: {line}");
        }
        let block = all.blocks.get_mut(&path(scopes)).context("a field outside of a message")?;
        block.insert(line);
    }
    Ok(())
}

/// The words and punctuation marks of a file, without comments. Each string is one token.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        let comment = character == '/' && matches!(rest.peek(), Some('/' | '*'));
        if !comment && (character.is_alphanumeric() || "_.-".contains(character)) {
            word.push(character);
            continue;
        }
        if !word.is_empty() {
            tokens.push(std::mem::take(&mut word));
        }
        if comment {
            skip_comment(&mut rest);
        } else if character == '"' {
            let string: String = rest.by_ref().take_while(|&character| character != '"').collect();
            tokens.push(format!("{string:?}"));
        } else if !character.is_whitespace() {
            tokens.push(character.to_string());
        }
    }
    tokens
}

fn skip_comment(rest: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    if rest.next() == Some('/') {
        rest.by_ref().find(|&character| character == '\n');
        return;
    }
    let mut previous = ' ';
    for character in rest.by_ref() {
        if previous == '*' && character == '/' {
            return;
        }
        previous = character;
    }
}
