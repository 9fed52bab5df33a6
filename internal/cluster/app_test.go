package cluster_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

func TestParseServicePorts(t *testing.T) {
	app := func(name, protocol string, ports ...int) cluster.AppPort {
		return cluster.AppPort{Name: name, Protocol: protocol, Ports: ports}
	}
	for label, want := range map[string][]cluster.AppPort{
		"":                     {},
		"jupyter:http:8070":    {app("jupyter", "http", 8070)},
		" a:tcp:[9001, 9002],": {app("a", "tcp", 9001, 9002)},
		"a:http:8080,b:tcp:[9001,9002],c:preopen:5000,d:vnc:5900,e:rdp:3389": {
			app("a", "http", 8080), app("b", "tcp", 9001, 9002), app("c", "preopen", 5000), app("d", "vnc", 5900), app("e", "rdp", 3389),
		},
		"ipython:pty:3000,x:http:8080": {app("x", "http", 8080)},
		"x:http:80":                    {},
		"x:http:1024":                  {},
		"x:http:1025":                  {app("x", "http", 1025)},
		"x:http:65534":                 {app("x", "http", 65534)},
		"x:http:65535":                 {},
		"x:http:8080x":                 {},
		"x:http:[8080,8080]":           {},
		"x:http:[]":                    {},
		"x:http":                       {},
		":http:8080":                   {},
		"../x:http:8080":               {},
		"-x:http:8080":                 {},
		"x.y-z_1:http:8080":            {app("x.y-z_1", "http", 8080)},
		"x:http:2200,y:tcp:2201,z:tcp:7681,v:tcp:2003":    {},
		"sshd:tcp:2222,sftp:tcp:2223,ttyd:http:7777":      {},
		"x:http:8080,y:http:8080,x:http:8081,z:http:8082": {app("x", "http", 8080), app("z", "http", 8082)},
		"x:http:[8080,99],y:http:8080":                    {app("y", "http", 8080)},
		strings.Repeat("n", 65) + ":http:8080":            {},
		"]:[,x:http:8080":                                 {app("x", "http", 8080)},
	} {
		require.Equal(t, want, cluster.ParseServicePorts(label), label)
	}
	var many strings.Builder
	for i := range 1000 {
		many.WriteString("a" + strconv.Itoa(i) + ":tcp:" + strconv.Itoa(10000+i) + ",")
	}
	require.Len(t, cluster.ParseServicePorts(many.String()), 128)
}
