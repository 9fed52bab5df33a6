package webserver

import (
	"fmt"
	"net/http"
	"os"

	"github.com/pelletier/go-toml/v2"

	"berth.dev/berth/internal/fault"
)

// uiSettings are the sections of /config.toml.
type uiSettings map[string]map[string]any

// maxUIFile bounds the file.
const maxUIFile = 256 << 10

// readUI gives web interfaces what they need, and what the operator adds or changes in a file.
func readUI(cfg Config) (uiSettings, error) {
	ui := uiSettings{
		"general": {"connectionMode": "SESSION", "apiDomainName": cfg.Domain, "apiEndpointText": "Berth", "signupSupport": false,
			"allowChangeSigninMode": false, "allowAnonymousChangePassword": false, "allowProjectResourceMonitor": false,
			"enableExtendLoginSession": true},
		"resources": {"openPortToPublic": false, "allowNonAuthTCP": false, "allowPreferredPort": false},
		// Pages of what this cluster does not have.
		"menu":    {"blocklist": "pipeline,reservoir,model-store,chat,serving,deployments"},
		"wsproxy": {"proxyURL": ""},
	}
	if cfg.UIFile == "" {
		return ui, nil
	}
	info, err := os.Stat(cfg.UIFile)
	if err == nil && info.Size() > maxUIFile {
		err = fmt.Errorf("it has more than %d bytes", maxUIFile)
	}
	var raw []byte
	if err == nil {
		raw, err = os.ReadFile(cfg.UIFile)
	}
	added := uiSettings{}
	if err == nil {
		err = toml.Unmarshal(raw, &added)
	}
	if err != nil {
		return nil, fault.Invalidf("webserver.ui_file %s cannot be used", cfg.UIFile).WithCause(err).
			WithNext("write sections such as [general] with name = value lines")
	}
	for section, values := range added {
		if ui[section] == nil {
			ui[section] = map[string]any{}
		}
		for name, value := range values {
			ui[section][name] = value
		}
	}
	return ui, nil
}

// serveUI answers with the settings of web interfaces. The address of the API is the one that the browser uses.
func (s *Server) serveUI(v *visit) {
	out := map[string]map[string]any{}
	for section, values := range s.ui {
		out[section] = values
	}
	general := map[string]any{}
	for name, value := range s.ui["general"] {
		general[name] = value
	}
	if fixed, ok := general["apiEndpoint"].(string); !ok || fixed == "" {
		general["apiEndpoint"] = v.origin
	}
	out["general"] = general
	raw, err := toml.Marshal(out)
	if err != nil {
		panic(err) // it was read from TOML
	}
	h := v.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	v.write(http.StatusOK, raw)
}
