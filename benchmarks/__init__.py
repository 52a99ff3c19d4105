"""One script a question, its rivals and the physical limit in the same run; results/ keeps what came out."""
