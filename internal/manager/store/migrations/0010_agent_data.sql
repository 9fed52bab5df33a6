-- +goose Up
-- Where the agent's data port is, with its facts: the way of app proxies into kernels. Writer: node.Reports.
-- data_socket works on the host whose boot_id is the same.
ALTER TABLE agents ADD COLUMN data_address text NOT NULL DEFAULT '', -- host:port, '' when there is none
    ADD COLUMN data_socket text NOT NULL DEFAULT '';                 -- path on the agent's host, '' when there is none
