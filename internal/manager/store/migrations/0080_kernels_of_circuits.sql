-- +goose Up
-- Apps of every kernel of a session can be published, not only those of its main kernel. circuits.kernel_id names the kernel as before; a
-- launch token now does, too. Null is the main kernel: tokens of older managers, and those of clients that name a session alone.
-- Writer: app.Service.
ALTER TABLE app_launches ADD COLUMN kernel_id uuid REFERENCES kernels(id) ON DELETE CASCADE;
CREATE INDEX app_launches_kernel ON app_launches (kernel_id) WHERE kernel_id IS NOT NULL;
