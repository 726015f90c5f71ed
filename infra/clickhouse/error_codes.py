"""ClickHouse's error codes that drumline answers to, by ClickHouse's names for them."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Names the codes of errors."""

    CANNOT_PARSE_TEXT = 6
    NO_SUCH_COLUMN_IN_TABLE = 16
    CANNOT_PARSE_INPUT_ASSERTION_FAILED = 27
    BAD_ARGUMENTS = 36
    CANNOT_PARSE_DATE = 38
    CANNOT_PARSE_DATETIME = 41
    ILLEGAL_TYPE_OF_ARGUMENT = 43
    ILLEGAL_COLUMN = 44
    UNKNOWN_FUNCTION = 46
    UNKNOWN_IDENTIFIER = 47
    NOT_IMPLEMENTED = 48
    UNKNOWN_TYPE = 50
    TYPE_MISMATCH = 53
    TABLE_ALREADY_EXISTS = 57
    UNKNOWN_TABLE = 60
    SYNTAX_ERROR = 62
    ARGUMENT_OUT_OF_BOUND = 69
    CANNOT_CONVERT_TYPE = 70
    CANNOT_PARSE_NUMBER = 72
    INCORRECT_QUERY = 80
    UNKNOWN_DATABASE = 81
    UNKNOWN_SETTING = 115
    INCORRECT_DATA = 117
    TOO_LARGE_ARRAY_SIZE = 128
    TOO_LARGE_STRING_SIZE = 131
    TIMEOUT_EXCEEDED = 159
    TOO_SLOW = 160
    READONLY = 164
    UNKNOWN_USER = 192
    WRONG_PASSWORD = 193
    REQUIRED_PASSWORD = 194
    QUOTA_EXCEEDED = 201
    TOO_MANY_SIMULTANEOUS_QUERIES = 202
    NOT_AN_AGGREGATE = 215
    MEMORY_LIMIT_EXCEEDED = 241
    TABLE_IS_READ_ONLY = 242
    NOT_ENOUGH_SPACE = 243
    TOO_MANY_PARTS = 252
    DATABASE_ACCESS_DENIED = 291
    VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE = 321
    CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN = 349
    TOO_MANY_ROWS_OR_BYTES = 396
    DECIMAL_OVERFLOW = 407
    SETTING_CONSTRAINT_VIOLATION = 452
    BAD_QUERY_PARAMETER = 457
    VIOLATED_CONSTRAINT = 469
    ACCESS_DENIED = 497
    ACCESS_STORAGE_FOR_INSERTION_NOT_FOUND = 514
    AUTHENTICATION_FAILED = 516
    CANNOT_ASSIGN_ALTER = 517
    UNKNOWN_ELEMENT_OF_ENUM = 691


#: Codes that no retry fixes: wrong user or password, missing grants, database, table, column, function or setting, bad
#: SQL, values and parameters that do not fit. All else may pass: network, memory, too many parts.
PERMANENT = frozenset(
    {
        ErrorCode.CANNOT_PARSE_TEXT,
        ErrorCode.NO_SUCH_COLUMN_IN_TABLE,
        ErrorCode.CANNOT_PARSE_INPUT_ASSERTION_FAILED,
        ErrorCode.BAD_ARGUMENTS,
        ErrorCode.CANNOT_PARSE_DATE,
        ErrorCode.CANNOT_PARSE_DATETIME,
        ErrorCode.ILLEGAL_TYPE_OF_ARGUMENT,
        ErrorCode.ILLEGAL_COLUMN,
        ErrorCode.UNKNOWN_FUNCTION,
        ErrorCode.UNKNOWN_IDENTIFIER,
        ErrorCode.NOT_IMPLEMENTED,
        ErrorCode.UNKNOWN_TYPE,
        ErrorCode.TYPE_MISMATCH,
        ErrorCode.UNKNOWN_TABLE,
        ErrorCode.SYNTAX_ERROR,
        ErrorCode.CANNOT_CONVERT_TYPE,
        ErrorCode.CANNOT_PARSE_NUMBER,
        ErrorCode.INCORRECT_QUERY,
        ErrorCode.UNKNOWN_DATABASE,
        ErrorCode.UNKNOWN_SETTING,
        ErrorCode.INCORRECT_DATA,
        ErrorCode.READONLY,
        ErrorCode.UNKNOWN_USER,
        ErrorCode.WRONG_PASSWORD,
        ErrorCode.REQUIRED_PASSWORD,
        ErrorCode.DATABASE_ACCESS_DENIED,
        ErrorCode.SETTING_CONSTRAINT_VIOLATION,
        ErrorCode.BAD_QUERY_PARAMETER,
        ErrorCode.ACCESS_DENIED,
        ErrorCode.AUTHENTICATION_FAILED,
    }
)
#: Codes of a missing column, identifier, table or database: those of a server that is not migrated, or not far enough.
NOT_MIGRATED = frozenset(
    {
        ErrorCode.NO_SUCH_COLUMN_IN_TABLE,
        ErrorCode.UNKNOWN_IDENTIFIER,
        ErrorCode.UNKNOWN_TABLE,
        ErrorCode.UNKNOWN_DATABASE,
    }
)
