-- +goose Up
-- Since when a kernel is LOST, so that an agent which comes and goes without speaking of it does not begin its grace anew. Written with the
-- moves (WriteMoves); time in which no manager looked is taken out (SpareLost).
ALTER TABLE kernels ADD COLUMN lost_since timestamptz;
UPDATE kernels SET lost_since = status_changed WHERE status = 'LOST';
