// Command watch follows the X.509 contexts of a Workload API with go-spiffe and prints one JSON line per update.
//
// usage: watch SOCKET
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

type identity struct {
	ID       string `json:"id"`
	Serial   string `json:"serial"`
	NotAfter int64  `json:"not_after"`
}

type update struct {
	Identities []identity `json:"identities"`
	Bundles    int        `json:"bundles"`
	Error      string     `json:"error"`
}

type printer struct{ lines *json.Encoder }

func (p printer) OnX509ContextUpdate(c *workloadapi.X509Context) {
	u := update{Identities: []identity{}, Bundles: c.Bundles.Len()}
	for _, svid := range c.SVIDs {
		leaf := svid.Certificates[0]
		u.Identities = append(u.Identities, identity{svid.ID.String(), leaf.SerialNumber.Text(16), leaf.NotAfter.Unix()})
	}
	p.print(u)
}

func (p printer) OnX509ContextWatchError(err error) {
	p.print(update{Identities: []identity{}, Error: err.Error()})
}

func (p printer) print(u update) {
	if err := p.lines.Encode(u); err != nil {
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) != 2 {
		os.Stderr.WriteString("usage: watch SOCKET\n")
		os.Exit(2)
	}
	p := printer{json.NewEncoder(os.Stdout)}
	err := workloadapi.WatchX509Context(context.Background(), p, workloadapi.WithAddr("unix://"+os.Args[1]))
	if err != nil {
		p.OnX509ContextWatchError(err)
		os.Exit(1)
	}
}
