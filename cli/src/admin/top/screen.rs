//! The screen of `kindred top`.

use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};

use super::model::{Sample, View};
use crate::admin::args::Order;
use crate::admin::failure::Failure;

/// How long a key may wait for the screen.
const KEY: Duration = Duration::from_millis(100);

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Quit,
    Sort(Order),
    Down,
    Up,
    Nothing,
}

fn does(code: KeyCode, modifiers: KeyModifiers, order: Order) -> Does {
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Does::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Does::Quit,
        KeyCode::Char('s') | KeyCode::Tab | KeyCode::Right => Does::Sort(order.next()),
        KeyCode::Char(digit @ '1'..='7') => Does::Sort(Order::ALL[digit as usize - '1' as usize]),
        KeyCode::Down | KeyCode::Char('j') => Does::Down,
        KeyCode::Up | KeyCode::Char('k') => Does::Up,
        _ => Does::Nothing,
    }
}

struct Screen {
    order: Order,
    before: Sample,
    now: Sample,
    selected: TableState,
    /// Why the last look failed.
    failed: Option<String>,
}

/// Shows the load, with a look at each interval, until `q` is pressed.
pub async fn run<L: AsyncFn() -> Result<Sample, Failure>>(
    first: Sample,
    look: L,
    every: Duration,
    order: Order,
) -> Result<(), Failure> {
    let broken = |error: std::io::Error| Failure::Refused(format!("the terminal: {error}"));
    let mut terminal = ratatui::try_init().map_err(broken)?;
    let selected = TableState::default();
    let mut screen = Screen { order, before: first.clone(), now: first, selected, failed: None };
    let shown = screen.show(&mut terminal, look, every).await;
    ratatui::restore();
    shown.map_err(broken)
}

impl Screen {
    async fn show<L: AsyncFn() -> Result<Sample, Failure>>(
        &mut self,
        terminal: &mut DefaultTerminal,
        look: L,
        every: Duration,
    ) -> std::io::Result<()> {
        let mut next = tokio::time::Instant::now() + every;
        loop {
            terminal.draw(|frame| self.draw(frame))?;
            while event::poll(Duration::ZERO)? {
                let Event::Key(key) = event::read()? else { break };
                match does(key.code, key.modifiers, self.order) {
                    _ if key.kind == KeyEventKind::Release => {}
                    Does::Quit => return Ok(()),
                    Does::Sort(order) => self.order = order,
                    Does::Down => self.selected.select_next(),
                    Does::Up => self.selected.select_previous(),
                    Does::Nothing => {}
                }
            }
            if tokio::time::Instant::now() >= next {
                next = tokio::time::Instant::now() + every;
                match look().await {
                    Ok(sample) => {
                        self.before = std::mem::replace(&mut self.now, sample);
                        self.failed = None;
                    }
                    Err(failure) => self.failed = Some(failure.to_string()),
                }
            }
            tokio::time::sleep(KEY).await;
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let view = View::between(&self.before, &self.now, self.order);
        let stores = u16::try_from(view.stores().len()).unwrap_or(u16::MAX).saturating_add(3).min(12);
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(4),
            Constraint::Length(stores),
            Constraint::Length(1),
        ])
        .split(frame.area());
        let title = match &self.failed {
            Some(why) => format!("kindred top: {why}"),
            None => format!("kindred top: router {}, sorted by {}", view.router, self.order.column()),
        };
        frame.render_widget(Line::from(title).style(Style::new().add_modifier(Modifier::BOLD)), areas[0]);
        let head = View::head().into_iter().map(|column| match column == self.order.column() {
            true => format!("{column} v"),
            false => column.to_owned(),
        });
        let widths = [
            Constraint::Min(16),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(12),
            Constraint::Length(12),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Length(10),
            Constraint::Min(10),
        ];
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let kinds = Table::new(view.kinds().into_iter().map(Row::new), widths)
            .header(Row::new(head).style(bold))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
            .block(Block::bordered().title("Kinds"));
        frame.render_stateful_widget(kinds, areas[1], &mut self.selected);
        let widths =
            [Constraint::Min(16), Constraint::Length(12), Constraint::Length(12), Constraint::Min(20)];
        let stores = Table::new(view.stores().iter().map(|row| Row::new(row.clone())), widths)
            .header(Row::new(["store", "state", "held", "trouble"]).style(bold))
            .block(Block::bordered().title("Stores"));
        frame.render_widget(stores, areas[2]);
        frame.render_widget(Line::from("q quit   s or 1-7 sort   up, down select"), areas[3]);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::tests::look;
    use super::*;

    #[test]
    fn the_screen_has_kinds_and_stores_and_fits_a_small_terminal() {
        let mut screen = Screen {
            order: Order::Calls,
            before: look(10.0, 100, 0),
            now: look(12.0, 300, 4),
            selected: TableState::default(),
            failed: None,
        };
        for (width, height) in [(120, 30), (40, 8), (1, 1)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| screen.draw(frame)).unwrap();
            if width == 120 {
                let shown = terminal.backend().to_string();
                for text in
                    ["router r, sorted by calls/s", "calls/s v", "pods", "2.0 ms", "its log fails", "q quit"]
                {
                    assert!(shown.contains(text), "{text}\n{shown}");
                }
            }
        }
    }

    #[test]
    fn keys_do_what_the_last_line_says() {
        let of = |code| does(code, KeyModifiers::NONE, Order::Calls);
        assert_eq!(of(KeyCode::Char('q')), Does::Quit);
        assert_eq!(of(KeyCode::Char('5')), Does::Sort(Order::Size));
        assert_eq!(of(KeyCode::Char('s')), Does::Sort(Order::Errors));
        assert_eq!(does(KeyCode::Char('c'), KeyModifiers::CONTROL, Order::Calls), Does::Quit);
        assert_eq!(of(KeyCode::Char('x')), Does::Nothing);
    }
}
