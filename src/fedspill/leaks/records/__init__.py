"""Records of a table: the leak, its guess, its metrics and its attacks."""

from fedspill.leaks.records.guess import Records
from fedspill.leaks.records.leak import RECORDS
from fedspill.leaks.records.metrics import CertifiedRecords, RecordFields, RecordsWhole
from fedspill.leaks.records.planted_records import PlantedRecords
from fedspill.leaks.records.records import TableRecords
from fedspill.leaks.records.tableak import TabLeak

__all__ = [
    "RECORDS",
    "CertifiedRecords",
    "PlantedRecords",
    "RecordFields",
    "Records",
    "RecordsWhole",
    "TabLeak",
    "TableRecords",
]
