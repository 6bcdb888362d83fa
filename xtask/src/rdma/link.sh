# link.sh down|up: drops packets between rxe0 and rxe1, or delivers them again.
#
# The interface itself stays up. Soft-RoCE of Linux 6.1 never makes another connection, for any program, if the routes
# were gone with their interface when it had something to say to the other end of one.
set -eu
nowhere=02:00:00:00:00:01
case $1 in
down)
    ip neigh replace 10.77.0.1 lladdr $nowhere dev v1 nud permanent
    ip neigh replace 10.77.0.2 lladdr $nowhere dev v0 nud permanent
    ;;
up)
    ip neigh flush dev v1 nud permanent
    ip neigh flush dev v0 nud permanent
    ;;
esac
