package transfer

// fileMode is what uploaded files get; the volume decides their owner.
const fileMode = 0o644

// Reasons are slugs of the wire below probs/storage/.
const (
	reasonInvalidParams = "invalid-api-params"
	reasonTooLarge      = "upload-too-large"
)
