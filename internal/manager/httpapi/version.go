package httpapi

import (
	"net/http"
	"slices"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/signature"
)

// What the version probe answers. Both strings steer what clients do, see docs/api-extensions.md:
// APIVersion is negotiated by the command line, ManagerVersion gates features of the web console.
const (
	APIVersion     = "v8.20240915"
	ManagerVersion = "24.09.12"
)

// defaultVersion is what a request without a version header speaks.
const defaultVersion = "v5.20191215"

// acceptedVersions are the values of the version header that official clients send, oldest first.
var acceptedVersions = []string{
	"v4.20181215", "v4.20190115", "v4.20190315", "v4.20190615", "v5.20191215",
	"v6.20200815", "v6.20210815", "v6.20220315", "v6.20220615", "v6.20221201", "v6.20230315",
	"v7.20230615", "v8.20240315", "v8.20240915", "v9.20250722",
}

// trashVersion is the first version whose clients know the trash bin of folders.
const trashVersion = "v8.20240315"

// HidesTrash reports whether the request's client knows no trash bin and takes every folder that is listed for one that it may use.
func HidesTrash(r *http.Request) bool {
	v, err := checkVersion(r.Header)
	return err == nil && v < trashVersion
}

// checkVersion returns the version that the request speaks.
func checkVersion(h http.Header) (string, error) {
	v, header := signature.Version(h)
	if v == "" {
		return defaultVersion, nil
	}
	if slices.Contains(acceptedVersions, v) {
		return v, nil
	}
	return "", fault.Invalidf("Unsupported API version: %s says %q", header, fault.Cut(v, 40)).WithReason(reasonBadRequest).
		WithNext("use a client that speaks one of the versions v4.20181215 to v9.20250722")
}
