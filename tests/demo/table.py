"""The figures at the end, for people and for machines."""

from typing import Any

from workload import NODES, Result, Workload


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


def _column(work: Workload, result: Result) -> dict[str, str]:
    restart = "not known" if result.restart_ms is None else f"{result.restart_ms:.1f} ms"
    lost = "not known" if result.steps_lost is None else f"{result.steps_lost} (resumed from step {result.resumed_from})"
    return {
        "trained": f"{work.steps} steps, {work.ranks} ranks on {NODES} nodes",
        "fault": f"SIGKILL to rank {work.kill_rank} on {result.node}",
        "death to all ranks running again": restart,
        "steps lost": lost,
        "checkpoints written": f"{result.checkpoints_written}, {_megabytes(result.checkpoint_bytes_written)}",
        "checkpoints kept in RADOS": f"{result.checkpoints_kept}, {_megabytes(result.bytes_in_rados)}"
        + (", verified" if result.verified else ", NOT VERIFIED"),
        "Slurm step before and after": f"{', '.join(result.steps_before)} and {', '.join(result.steps_after)}",
        "Slurm job": f"{result.job} {result.state}",
        "parameters as without the fault": "bit for bit" if result.identical else "NO",
    }


def render(results: list[tuple[Workload, Result]]) -> list[str]:
    """The table's lines."""
    columns = [_column(work, result) for work, result in results]
    rows = [["", *(work.title for work, _ in results)]]
    rows += [[name, *(column[name] for column in columns)] for name in columns[0]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def figures(results: list[tuple[Workload, Result]], seconds: float) -> dict[str, Any]:
    """One flat object."""
    flat: dict[str, Any] = {"demo": "muster", "seconds": round(seconds, 1)}
    for work, result in results:
        values: dict[str, Any] = {
            "ranks": work.ranks,
            "nodes": NODES,
            "steps": work.steps,
            "killed_rank": work.kill_rank,
            "restart_ms": result.restart_ms,
            "steps_lost": result.steps_lost,
            "resumed_from_step": result.resumed_from,
            "checkpoints_written": result.checkpoints_written,
            "checkpoint_bytes_written": result.checkpoint_bytes_written,
            "checkpoints_kept": result.checkpoints_kept,
            "bytes_in_rados": result.bytes_in_rados,
            "checkpoints_verified": result.verified,
            "same_slurm_step": result.same_step,
            "job_state": result.state,
            "identical_parameters": result.identical,
        }
        flat |= {f"{work.name}_{key}": value for key, value in values.items()}
    flat["good"] = not any(result.complaints() for _, result in results)
    return flat
