package api

// TaskStarted is the answer of requests that begin a background task, which TaskEvents follows.
type TaskStarted struct {
	TaskID string `json:"bgtask_id"`
}

// CommitStarted is the answer of requests that save a container as an image.
type CommitStarted struct {
	TaskStarted
	Status  string `json:"status"`
	Subject string `json:"subject"` // id of the container
}

// CommitStatus tells whether a container is being saved.
type CommitStatus struct {
	Status string `json:"status"`
	Kernel string `json:"kernel"`
}
