package embedded

// UnpackBundle lets tests unpack the bundle although the machine has a PostgreSQL.
var UnpackBundle = unpackBundle
