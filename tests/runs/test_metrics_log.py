"""The log of a run: no line is lost, none is torn."""

from __future__ import annotations

from nearsight.runs.metrics_log import MetricsLog, read_metrics


def test_the_log_survives_a_disk_that_is_full_for_a_while(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.restore(b'{"step": 1}\n')
    log.append({"step": 2, "loss": float("nan"), "gates": [[0.5, float("inf")]]})

    class Full:
        def write(self, content):
            raise OSError(28, "No space left on device")

        def close(self):
            return

    log._file.close()
    log._file = Full()
    log.append({"step": 3})
    assert [record["step"] for record in read_metrics(log.path)] == [1, 2]
    log.append({"step": 4})
    log.flush()
    log.release()
    records = read_metrics(log.path)
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert records[1] == {"step": 2, "loss": "nan", "gates": [[0.5, "inf"]]}
    log.path.write_bytes(log.path.read_bytes()[:-4])
    assert [record["step"] for record in read_metrics(log.path)] == [1, 2, 3]
