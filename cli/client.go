package cli

import (
	"os"

	"atoll.dev/client"
)

// api returns a client of the region: of the one that ATOLL_ENDPOINT and the
// AWS_ variables name, when no --home is given and they are set, else of the
// home's.
func (c *command) api() (*client.Client, error) {
	if endpoint := os.Getenv("ATOLL_ENDPOINT"); endpoint != "" && !c.homeGiven {
		return client.New(client.Options{
			Endpoint: endpoint, CAFile: os.Getenv("ATOLL_CA"),
			Credentials: client.Credentials{
				AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY"),
				SessionToken: os.Getenv("AWS_SESSION_TOKEN"), Region: os.Getenv("AWS_REGION"),
			},
		})
	}
	home, err := c.home()
	if err != nil {
		return nil, err
	}
	return home.Client()
}
