"""Files from elsewhere: how much of them is believed, and readers that hold on to it."""
