"""What callers use whose tokens are bound to names (`paceline tokens create --for 'team-a-*'`): the service's objects,
which show and change nothing else."""
