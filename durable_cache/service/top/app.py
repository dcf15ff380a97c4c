"""The terminal view of running services: tables that refresh, sort, and lead further down."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Input, Static

from durable_cache.errors import DurableCacheError
from durable_cache.model.key_expression import KeyExpression
from durable_cache.service.output import cell_text, counted
from durable_cache.service.top.levels import (
    COLUMNS,
    Level,
    View,
    cell,
    row_key,
    sort_rows,
    storage_rows,
)
from durable_cache.service.top.reach import Reach, Row

_INTERRUPTED = 130
_TERMINATED = 143
_SAMPLE_CHARS = 16_384


class Top(App[int]):
    """Shows what `reach` finds, until `q`; the result of `run` is the exit code.

    At most `rows_max` rows are asked for at once, one refresh at a time.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "durable-cache top"
    CSS = """
    #where { height: 1; background: $primary; color: $text; text-style: bold; }
    #said { height: auto; max-height: 3; color: $warning; }
    #search { display: none; height: 3; }
    #search.open { display: block; }
    #rows { height: 1fr; }
    #whole { display: none; height: 1fr; }
    .single #rows { display: none; }
    .single #whole { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit_top", "quit"),
        Binding("escape", "up", "back"),
        Binding("s", "beside('sources')", "sources"),
        Binding("p", "beside('peers')", "peers"),
        Binding("slash", "search", "search"),
        Binding("greater_than_sign", "sort(1)", "sort", key_display="< >"),
        Binding("less_than_sign", "sort(-1)", "sort", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("n", "page(1)", "next page"),
        Binding("b", "page(-1)", "page before"),
        Binding("space", "pause", "pause"),
        Binding("ctrl+c", "interrupt", "interrupt", show=False, priority=True),
    ]

    def __init__(self, reach: Reach, *, interval_seconds: float, rows_max: int) -> None:
        super().__init__()
        self._reach = reach
        self._interval_seconds = interval_seconds
        self._rows_max = rows_max
        self._levels = [Level(View.STORAGES)]
        self._rows: list[Row] = []
        self._keys: list[str] = []
        self._next: str | None = None
        self._before: dict[tuple[str, str], Row] = {}
        self._before_seconds = 0.0
        self._columns_of: View | None = None
        self._asking = self._paused = False
        self._refused = ""

    @property
    def _level(self) -> Level:
        return self._levels[-1]

    def compose(self) -> ComposeResult:
        """Lay out the screen: where one is, what is wrong, a search, rows or one sample, keys."""
        yield Static(id="where", markup=False)
        yield Static(id="said", markup=False)
        yield Input(placeholder="key expression, as in fleet/**", id="search")
        yield DataTable[Text](id="rows", cursor_type="row", zebra_stripes=True)
        yield VerticalScroll(Static(id="text", markup=False), id="whole")
        yield Footer()

    async def on_mount(self) -> None:
        """Begin to refresh; a signal ends the view and leaves the terminal as it was."""
        loop = asyncio.get_running_loop()
        for number, code in ((signal.SIGINT, _INTERRUPTED), (signal.SIGTERM, _TERMINATED)):
            loop.add_signal_handler(number, self.exit, code)
        self._table.focus()
        self._show_where()
        self._refresh_rows()
        self.set_interval(self._interval_seconds, self._tick)

    @property
    def _table(self) -> DataTable[Text]:
        return cast("DataTable[Text]", self.query_one("#rows", DataTable))

    def _tick(self) -> None:
        if not self._paused:
            self._refresh_rows()

    def _refresh_rows(self) -> None:
        """Ask in a thread, unless an answer is awaited."""
        if self._asking or self._level.view is View.SAMPLE:
            return
        self._asking = True
        level = self._level
        parameters = level.parameters(self._rows_max)
        self.run_worker(lambda: self._ask(level, parameters), thread=True, group="ask")

    def _ask(self, level: Level, parameters: Mapping[str, str]) -> None:
        said, after = "", None
        rows: Sequence[Row] | None = None
        try:
            match level.view:
                case View.STORAGES:
                    rows = self._storages()
                case View.PEERS:
                    rows = self._reach.peers(level.zid, level.storage)
                case _:
                    page = self._reach.page(level.zid, level.storage, level.view.value, parameters)
                    rows = cast("Sequence[Row]", page["rows"])
                    after = cast("str | None", page["next"])
        except DurableCacheError as error:
            said = f"{error}; trying again every {self._interval_seconds:g} s"
        finally:
            self._asking = False
        if level.parameters(self._rows_max) != parameters:
            rows = None  # another page was turned to meanwhile
        self.call_from_thread(self._answered, level, rows, after, said)

    def _storages(self) -> list[Row]:
        reports = self._reach.reports()
        now = time.monotonic()
        rows = storage_rows(reports, self._before, now - self._before_seconds)
        self._before = {(str(row["zid"]), str(row["name"])): row for row in rows}
        self._before_seconds = now
        return rows

    def _answered(
        self, level: Level, rows: Sequence[Row] | None, after: str | None, said: str
    ) -> None:
        if level is not self._level:
            self._refresh_rows()
            return
        self.query_one("#said", Static).update(cell_text(self._refused or said))
        if rows is not None:
            self._rows, self._next = list(rows), after
            self._show_rows()
        self._show_where()

    def _show_where(self) -> None:
        level = self._level
        parts = [f"durable-cache top: {level.title}"]
        if level.view is not View.SAMPLE:
            parts.append(counted(len(self._rows), "row") + (", n: more" if self._next else ""))
        if level.sort:
            parts.append(f"by {level.sort} {'↓' if level.reverse else '↑'}")
        if self._paused:
            parts.append("paused")
        self.query_one("#where", Static).update(" | ".join(parts))

    def _show_rows(self) -> None:
        level, table = self._level, self._table
        columns = COLUMNS[level.view]
        if self._columns_of is not level.view:
            table.clear(columns=True)
            for column in columns:
                table.add_column(column.title, key=column.name)
            self._columns_of, self._keys = level.view, []
        rows = sort_rows(self._rows, level.sort, reverse=level.reverse)
        keys = [row_key(level.view, row) for row in rows]
        if keys == self._keys:
            self._update_cells(rows)
        else:
            self._replace_rows(rows, keys)
        self._rows = rows

    def _update_cells(self, rows: Sequence[Row]) -> None:
        """Draw only what changed."""
        table = self._table
        for at, row in enumerate(rows):
            shown = table.get_row_at(at)
            for place, column in enumerate(COLUMNS[self._level.view]):
                text = cell(row, column)
                if shown[place].plain != text:
                    table.update_cell_at(Coordinate(at, place), Text(text), update_width=True)

    def _replace_rows(self, rows: Sequence[Row], keys: Sequence[str]) -> None:
        table = self._table
        at = table.cursor_row
        chosen = self._keys[at] if 0 <= at < len(self._keys) else ""
        table.clear()
        for row in rows:
            table.add_row(*(Text(cell(row, column)) for column in COLUMNS[self._level.view]))
        self._keys = list(keys)
        if chosen in self._keys:
            table.move_cursor(row=self._keys.index(chosen), animate=False)

    def _selected(self) -> Row | None:
        at = self._table.cursor_row
        return self._rows[at] if 0 <= at < len(self._rows) else None

    def _go(self, level: Level | None) -> None:
        """Go further down; None stays."""
        if level is None:
            self.bell()
            return
        self._levels.append(level)
        self._turned()

    def _turned(self) -> None:
        self._rows, self._next = [], None
        level = self._level
        self.screen.set_class(level.view is View.SAMPLE, "single")
        if level.view is View.SAMPLE:
            self._read_sample(level)
        else:
            self._show_rows()
            self._table.focus()
            self._refresh_rows()
        self._show_where()

    def _read_sample(self, level: Level) -> None:
        """Show one sample at once as the list had it, then with its payload whole."""
        self._show_sample(level.sample or {})
        self.query_one("#whole").focus()
        self.run_worker(lambda: self._ask_sample(level), thread=True, group="ask")

    def _ask_sample(self, level: Level) -> None:
        sample = level.sample or {}
        parameters = {
            "key": level.key,
            "source": str(sample["source"]),
            "at": str(sample["ntp64"]),
            "chars": str(_SAMPLE_CHARS),
        }
        try:
            page = self._reach.page(level.zid, level.storage, "samples", parameters)
        except DurableCacheError as error:
            self.call_from_thread(self._answered, level, None, None, str(error))
            return
        for row in cast("Sequence[Row]", page["rows"]):
            if row_key(View.SAMPLES, row) == row_key(View.SAMPLES, sample):
                self.call_from_thread(self._show_sample, row)

    def _show_sample(self, sample: Row) -> None:
        names = ("key", "source", "epoch", "sn", "time", "kind", "encoding", "bytes", "attachment")
        lines = [f"{name:<11}{cell_text(sample.get(name))}" for name in names]
        value = "\n".join(cell_text(line) for line in str(sample.get("value", "")).split("\n"))
        form = f"payload ({sample.get('form') or 'none'}):"
        self.query_one("#text", Static).update("\n".join([*lines, "", form, value]))

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Enter, or a click on the row that is chosen: go further down."""
        self.action_down()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked; a second click turns it round."""
        name, level = str(event.column_key.value), self._level
        level.reverse = not level.reverse if level.sort == name else True
        level.sort = name
        self._show_rows()
        self._show_where()

    def action_down(self) -> None:
        """Open what is selected."""
        row = self._selected()
        if row is not None and self._level.view is not View.SAMPLE:
            self._go(self._level.below(row))

    def action_beside(self, what: str) -> None:
        """Show the sources or the peers of what is selected."""
        if self._level.view is not View.SAMPLE:
            self._go(self._level.beside(View(what), self._selected()))

    def action_up(self) -> None:
        """Close the search, or go back to where one came from."""
        search = self.query_one("#search", Input)
        if search.has_class("open"):
            search.remove_class("open")
            self._say_refused("")
            self._table.focus()
        elif len(self._levels) > 1:
            self._levels.pop()
            self._turned()

    def action_search(self) -> None:
        """Ask for a key expression; from the storages, within the one that is selected."""
        search = self.query_one("#search", Input)
        search.add_class("open")
        search.value = self._level.key_expr
        search.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show the keys that an expression names."""
        level, row = self._level, self._selected()
        try:
            KeyExpression(event.value or "**")
        except ValueError as error:
            self._say_refused(str(error))
            return
        self._say_refused("")
        self.query_one("#search", Input).remove_class("open")
        if level.view is View.STORAGES:
            if row is not None:
                zid, name = str(row["zid"]), str(row["name"])
                self._go(Level(View.KEYS, zid, name, key_expr=event.value))
            return
        if level.view is View.KEYS:
            self._levels.pop()
        self._go(Level(View.KEYS, level.zid, level.storage, key_expr=event.value))

    def _say_refused(self, reason: str) -> None:
        self._refused = reason
        self.query_one("#said", Static).update(cell_text(reason))

    def action_sort(self, step: int) -> None:
        """Sort by the next column, or the one before."""
        level = self._level
        if level.view is View.SAMPLE:
            return
        names = [column.name for column in COLUMNS[level.view]]
        at = names.index(level.sort) + step if level.sort in names else (0 if step > 0 else -1)
        level.sort = names[at % len(names)]
        self._show_rows()
        self._show_where()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self._level.reverse = not self._level.reverse
        if self._level.view is not View.SAMPLE:
            self._show_rows()
        self._show_where()

    def action_page(self, step: int) -> None:
        """Show the next page, or the one before."""
        pages = self._level.pages
        if step > 0 and self._next:
            pages.append(self._next)
        elif step < 0 and len(pages) > 1:
            pages.pop()
        else:
            self.bell()
            return
        self._next = None
        self._refresh_rows()

    def action_pause(self) -> None:
        """Stop refreshing, or go on."""
        self._paused = not self._paused
        self._show_where()

    def action_quit_top(self) -> None:
        """End with exit code 0."""
        self.exit(0)

    def action_interrupt(self) -> None:
        """End as Ctrl-C ends any verb."""
        self.exit(_INTERRUPTED)
