-- The first lines and files that could not be read.
SELECT file, line, why, text FROM rejected LIMIT $most
